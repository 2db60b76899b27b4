/** A table that draws only the rows in view. It scrolls with the page, and its columns can be sorted. */

import { h, moveRow, put } from "./dom.js"

const ROW_PX = 40
const SPARE_ROWS = 8

/**
 * Columns are `{key, label, cell(row), sort(row), class}`. A column of numbers begins with the highest. Cells are created
 * once per visible row, and filled again when the row changes.
 */
export function table({ label, columns, sortBy, descending = false, rowKey, signal, class: extra = "", onSort = null }) {
  let rows = []
  let order = { key: sortBy, down: descending }
  const head = h("div.row.head", { role: "row", "aria-rowindex": 1 })
  const space = h("div.space", { role: "presentation" })
  const body = h("div.rows", { role: "rowgroup", tabIndex: 0, "aria-label": `${label}, rows`, on: { keydown: move } }, space)
  const element = h("div", { class: `table ${extra}`, role: "table", "aria-label": label }, h("div", { role: "rowgroup" }, head), body)
  const drawn = new Map()
  new ResizeObserver(draw).observe(body)
  addEventListener("scroll", draw, { passive: true, signal })
  addEventListener("resize", draw, { passive: true, signal })
  drawHead()

  function drawHead() {
    const focused = head.contains(document.activeElement) ? document.activeElement.dataset.key : null
    put(head, columns.map((column) => {
      const sorted = order.key === column.key
      const direction = sorted ? (order.down ? "descending" : "ascending") : null
      const text = column.sort
        ? h("button", { type: "button", "data-key": column.key, on: { click: () => sort(column) } }, column.label,
          h("span.arrow", { "aria-hidden": "true" }, sorted ? (order.down ? "↓" : "↑") : ""))
        : column.label
      return h("div", { role: "columnheader", class: column.class ?? "", "aria-sort": direction }, text)
    }))
    if (focused) head.querySelector(`[data-key="${focused}"]`)?.focus()
  }

  function sort(column) {
    order = { key: column.key, down: order.key === column.key ? !order.down : /number/.test(column.class) }
    drawHead()
    arrange()
    onSort?.(`${order.down ? "-" : ""}${order.key}`)
  }

  function arrange() {
    const value = columns.find((column) => column.key === order.key)?.sort
    if (value) {
      const sign = order.down ? -1 : 1
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)]
        return (x < y ? -1 : x > y ? 1 : 0) * sign
      })
    }
    draw()
  }

  function draw() {
    element.setAttribute("aria-rowcount", rows.length + 1)
    space.style.height = `${rows.length * ROW_PX}px`
    const top = space.getBoundingClientRect().top
    const first = Math.max(Math.floor(-top / ROW_PX) - SPARE_ROWS, 0)
    const last = Math.min(Math.ceil((innerHeight - top) / ROW_PX) + SPARE_ROWS, rows.length)
    const wanted = new Set()
    for (let at = first; at < last; at++) {
      const row = rows[at]
      const key = rowKey(row)
      wanted.add(key)
      let line = drawn.get(key)
      if (!line) {
        line = { cells: columns.map((column) => h("div", { role: "cell", class: column.class ?? "" })), element: null, texts: [] }
        line.element = h("div.row", { role: "row" }, line.cells)
        drawn.set(key, line)
        space.append(line.element)
      }
      line.element.style.transform = `translateY(${at * ROW_PX}px)`
      line.element.setAttribute("aria-rowindex", at + 2)
      columns.forEach((column, number) => fill(line, number, column.cell(row)))
    }
    for (const [key, line] of drawn) {
      if (wanted.has(key)) continue
      if (line.element.contains(document.activeElement)) body.focus({ preventScroll: true })
      line.element.remove()
      drawn.delete(key)
    }
  }

  /** Fill a cell with text, or with an element and a string that changes with it: `[element, string]`. */
  function fill(line, number, content) {
    const [node, text] = Array.isArray(content) ? content : [null, String(content)]
    if (line.texts[number] === text) return
    line.texts[number] = text
    put(line.cells[number], node ? (typeof node === "function" ? node() : node) : text)
  }

  /** Arrow keys move between the rows. */
  function move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
    if (step && moveRow(body, step)) event.preventDefault()
  }

  return {
    element,
    set(next) {
      rows = [...next]
      arrange()
    },
  }
}
