/** A graph of routers: topics as boxes in columns from source to destination, routers as edges with lag and rate. */

import { svg } from "./dom.js"
import { rate, short } from "./format.js"

const BOX = { width: 168, height: 34 }
const GAP = { x: 150, y: 22 }

/** Draw the routers. `link(topic)` returns the address of a topic's page. */
export function graph(routers, link) {
  const places = arrange(routers)
  const columns = Math.max(...[...places.values()].map((place) => place.column)) + 1
  const rows = Math.max(...[...places.values()].map((place) => place.row)) + 1
  const width = columns * BOX.width + (columns - 1) * GAP.x + 4
  const height = rows * (BOX.height + GAP.y) + 16
  const x = (place) => 2 + place.column * (BOX.width + GAP.x)
  const y = (place) => 10 + place.row * (BOX.height + GAP.y)
  const drawn = new Map()
  return svg("svg", {
    class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
    "aria-label": `Graph of ${routers.length} routers between ${places.size} topics. The table below lists them.`,
  },
  svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8Z", class: "arrow-head" }))),
  routers.map((router) => {
    const [from, to] = [places.get(router.source), places.get(router.dest)]
    const pair = `${router.source} ${router.dest}`
    const nth = drawn.get(pair) ?? 0
    drawn.set(pair, nth + 1)
    const back = to.column <= from.column
    const start = [x(from) + BOX.width, y(from) + BOX.height / 2]
    const end = back ? [x(to) + BOX.width / 2, y(to) + BOX.height + 2] : [x(to) - 2, y(to) + BOX.height / 2]
    const bend = GAP.x / 2
    const path = back
      ? `M${start}C${start[0] + bend} ${start[1] + 40} ${end[0]} ${end[1] + 60} ${end}`
      : `M${start}C${start[0] + bend} ${start[1]} ${end[0] - bend} ${end[1]} ${end}`
    const at = back ? [start[0] + 12, start[1] + 24] : [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2 - 5 + nth * 24]
    return svg("g", { class: `edge ${router.last_error ? "held" : router.lag ? "behind" : ""}` },
      svg("path", { d: path, "marker-end": "url(#arrow)" }),
      svg("text", { x: at[0], y: at[1], "text-anchor": "middle" }, router.lag ? `${short(router.lag)} behind` : rate(router.rate ?? 0)),
      svg("title", {}, `${router.router}: ${router.source} to ${router.dest}, ${router.lag} behind${router.last_error ? `, held up: ${router.last_error}` : ""}`))
  }),
  [...places].map(([topic, place]) => svg("a", { href: link(topic), class: "box" },
    svg("rect", { x: x(place), y: y(place), width: BOX.width, height: BOX.height, rx: 6 }),
    svg("text", { x: x(place) + 12, y: y(place) + BOX.height / 2 + 4 }, topic.length > 21 ? `${topic.slice(0, 20)}…` : topic),
    svg("title", {}, topic))))
}

/** Give every topic a column, by its distance from a source, and a row, so that edges to the right do not cross. */
function arrange(routers) {
  const next = new Map()
  const targets = new Set()
  for (const { source, dest } of routers) {
    if (!next.has(source)) next.set(source, [])
    if (!next.get(source).includes(dest)) next.get(source).push(dest)
    targets.add(dest)
  }
  const places = new Map()
  let row = 0
  const visit = (topic, column) => {
    if (places.has(topic)) return
    const place = { column, row }
    places.set(topic, place)
    const children = (next.get(topic) ?? []).filter((dest) => !places.has(dest))
    if (children.length === 0) row += 1
    for (const dest of children) visit(dest, column + 1)
    const rows = children.map((dest) => places.get(dest).row)
    if (rows.length) place.row = (Math.min(...rows) + Math.max(...rows)) / 2
  }
  const sources = [...next.keys()].sort()
  for (const topic of sources.filter((name) => !targets.has(name))) visit(topic, 0)
  for (const topic of sources) visit(topic, 0) // what is left lies on cycles
  return places
}
