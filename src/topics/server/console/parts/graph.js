/**
 * A graph from left to right: boxes in columns by their distance from a source, edges with a label. Narrow screens get the
 * same as an indented list.
 *
 * Nodes are `{id, label, detail, href, kind}`. Edges are `{from, to, label, kind, title}`.
 */

import { h, span, svg } from "./dom.js"

const BOX = { width: 176, height: 40 }
const GAP = { x: 140, y: 14 }
const LABEL = 18

/** Draw the graph. `label` says what it shows. */
export function graph(nodes, edges, label) {
  const places = arrange(nodes, edges)
  const columns = Math.max(...[...places.values()].map((place) => place.column)) + 1
  const rows = Math.max(...[...places.values()].map((place) => place.row)) + 1
  const width = columns * BOX.width + (columns - 1) * GAP.x + 4
  const height = rows * (BOX.height + GAP.y) + 24
  const x = (place) => 2 + place.column * (BOX.width + GAP.x)
  const y = (place) => 6 + place.row * (BOX.height + GAP.y)
  const drawn = new Map()
  return svg("svg.graph", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label },
    svg("defs", svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path.arrow-head", { d: "M0 0L8 4L0 8Z" }))),
    edges.map((edge) => {
      const [from, to] = [places.get(edge.from), places.get(edge.to)]
      const pair = `${edge.from} ${edge.to}`
      const nth = drawn.get(pair) ?? 0
      drawn.set(pair, nth + 1)
      const back = to.column <= from.column
      const start = [x(from) + BOX.width, y(from) + BOX.height / 2]
      const end = back ? [x(to) + BOX.width / 2, y(to) + BOX.height + 2] : [x(to) - 2, y(to) + BOX.height / 2]
      const bend = GAP.x / 2
      const path = back
        ? `M${start}C${start[0] + bend} ${start[1] + 40} ${end[0]} ${end[1] + 60} ${end}`
        : `M${start}C${start[0] + 34} ${start[1]} ${start[0] + 6} ${end[1]} ${start[0] + 46} ${end[1]}L${end}`
      const at = back ? [start[0] + 12, start[1] + 24] : [end[0] - 14, end[1] - 5 + nth * 16]
      return svg("g", { class: `edge ${edge.kind ?? ""}` },
        svg("path", { d: path, "marker-end": "url(#arrow)" }),
        svg("text", { x: at[0], y: at[1], "text-anchor": back ? "middle" : "end" }, edge.label),
        svg("title", edge.title))
    }),
    nodes.map((node) => {
      const place = places.get(node.id)
      const [left, top] = [x(place), y(place)]
      const content = [
        svg("rect", { x: left, y: top, width: BOX.width, height: BOX.height, rx: node.kind === "reader" ? BOX.height / 2 : 6 }),
        svg("text", { x: left + 14, y: top + (node.detail ? 17 : BOX.height / 2 + 4) }, cut(node.label)),
        node.detail && svg("text.detail", { x: left + 14, y: top + 32 }, node.detail),
        svg("title", `${node.label}${node.detail ? `, ${node.detail}` : ""}`),
      ]
      return node.href ? svg("a", { href: node.href, class: `box ${node.kind ?? ""}` }, content) : svg("g", { class: `box ${node.kind ?? ""}` }, content)
    }))
}

const cut = (text) => (text.length > LABEL ? `${text.slice(0, LABEL - 1)}…` : text)

/** The same as an indented list. */
export function outline(nodes, edges, label) {
  const byId = new Map(nodes.map((node) => [node.id, node]))
  const shown = new Set()
  const item = (node, edge) => {
    const first = !shown.has(node.id)
    shown.add(node.id)
    const next = first ? edges.filter(({ from }) => from === node.id) : []
    return h("li", h("div", h(node.href ? "a" : "span", { href: node.href }, node.label), edge?.label && h("span", { class: `count ${{ behind: "warn", held: "bad" }[edge.kind] ?? ""}` }, edge.label), node.detail && span("faint", node.detail)),
      next.length > 0 && h("ul", next.map((one) => item(byId.get(one.to), one))))
  }
  const targets = new Set(edges.map(({ to }) => to))
  const roots = nodes.filter(({ id }) => !targets.has(id)).map((node) => item(node))
  for (const node of nodes) if (!shown.has(node.id)) roots.push(item(node)) // what is left lies on cycles
  return h("ul.outline", { "aria-label": label }, roots)
}

/** Give every node a column, by its distance from a source, and a row, so that edges to the right do not cross. */
function arrange(nodes, edges) {
  const next = new Map(nodes.map(({ id }) => [id, []]))
  const targets = new Set()
  for (const { from, to } of edges) {
    if (!next.get(from).includes(to)) next.get(from).push(to)
    targets.add(to)
  }
  const places = new Map()
  let row = 0
  const visit = (id, column) => {
    if (places.has(id)) return
    const place = { column, row }
    places.set(id, place)
    const children = next.get(id).filter((one) => !places.has(one))
    if (children.length === 0) row += 1
    for (const one of children) visit(one, column + 1)
    const rows = children.map((one) => places.get(one).row)
    if (rows.length) place.row = (Math.min(...rows) + Math.max(...rows)) / 2
  }
  for (const { id } of nodes) if (!targets.has(id)) visit(id, 0)
  for (const { id } of nodes) visit(id, 0) // what is left lies on cycles
  return places
}
