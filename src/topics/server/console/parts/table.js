/** A table that draws only the rows in view. It scrolls with the page, and its columns can be sorted. */

import { h, moveRow, put } from "./dom.js"

const ROW_PX = 40
const SPARE_ROWS = 8

/** Columns are `{key, label, cell(row), sort(row), print, class}`. Without `cell`, one shows what it is sorted by, through `print`. */
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
				line = h("div.row", { role: "row" }, columns.map((column) => h("div", { role: "cell", class: column.class ?? "" })))
				drawn.set(key, line)
				space.append(line)
			}
			line.style.transform = `translateY(${at * ROW_PX}px)`
			line.setAttribute("aria-rowindex", at + 2)
			if (line.shown !== row) fill(line, row)
		}
		for (const [key, line] of drawn) {
			if (wanted.has(key)) continue
			if (line.contains(document.activeElement)) body.focus({ preventScroll: true })
			line.remove()
			drawn.delete(key)
		}
	}

	function fill(line, row) {
		line.shown = row
		columns.forEach(({ cell, sort: value, print = String }, number) => {
			const made = h("div", cell ? cell(row) : print(value(row)))
			if (made.innerHTML !== line.children[number].innerHTML) put(line.children[number], [...made.childNodes])
		})
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
