/** The loss timeline: all seqs of a topic from 1 to its head, drawn to scale, with what has become of them. */

import { h, put, svg, swatch } from "./dom.js"
import { count, range, short, whole } from "./format.js"
import { session, topicPath } from "./session.js"
import { button, liveText, num, plainTable } from "./ui.js"

const BAR = 40
const LANE = 18
const MAX_LANES = 5
const PER_RANGE_PX = 3

/** What each state means, in the order of the legend. */
export const STATES = {
	live: "Live", deleted: "Deleted on request", archived: "Moved to the archive", cap: "Evicted by a cap", ttl: "Expired",
	corrupt: "Corrupt", restart: "Lost at a restart", failover: "Lost with a machine", source_trim: "Lost before a router copied it",
	mixed: "Lost for several reasons", merged: "Several states",
}
export const LOST = new Set(["cap", "ttl", "corrupt", "restart", "failover", "source_trim", "mixed"])

/** Draw the timeline of a topic. `onPick(seq)` is called for a click on a seq. */
export function timeline(topic, { signal, onPick }) {
	let view = null // the window [from, to]; null follows the head
	let data = null
	let marks = []
	let asked = 0

	const canvas = svg("svg.chart.timeline", { tabindex: 0, role: "application", "aria-label": `Timeline of ${topic}` })
	const { frame, showTip, setHeight, width } = chartFrame(canvas, () => draw(), signal)
	const legend = h("ul.states")
	const shownWindow = liveText()
	const listed = h("div")
	const all = h("details.ranges", { on: { toggle: () => list() } }, h("summary", "Ranges as a table"), listed)
	const zoom = Object.entries({ "Zoom in": () => scale(0.5), "Zoom out": () => scale(2), Everything: () => look(null) }).map(([label, act]) => button(label, act, { kind: "small" }))
	const element = h("div.timeline-box", frame, legend,
		h("div.toolbar", zoom, shownWindow), all)

	const bounds = () => [data?.from_seq ?? 1, Math.max(data?.to_seq ?? 1, data?.from_seq ?? 1)]
	const x = (seq) => {
		const [from, to] = bounds()
		return ((seq - from) / (to - from + 1)) * width()
	}
	const { scale } = zoomable(canvas, {
		domain: () => data && [bounds()[0], bounds()[1] + 1], look, hover, drawDrag: draw,
		onClick: (seq) => data.head_seq && onPick?.(Math.min(Math.floor(seq), data.head_seq)),
	})

	/** Show a window of seqs, which ends before the second; null shows everything. */
	function look(next) {
		view = null
		if (next && data) {
			const size = Math.max(Math.ceil(next[1] - next[0]), 1)
			const from = Math.max(Math.min(Math.floor(next[0]), data.head_seq - size + 1), 1)
			if (size < data.head_seq) view = [from, from + size - 1]
		}
		void refresh().catch(() => {})
	}

	async function refresh() {
		const turn = ++asked
		const ranges = Math.min(Math.max(Math.floor(width() / PER_RANGE_PX), 50), 2000)
		const window = view ? `&from_seq=${view[0]}&to_seq=${view[1]}` : ""
		const answer = await session.get(topicPath(topic, `/timeline?ranges=${ranges}${window}`), signal)
		if (turn === asked) {
			data = answer
			draw()
		}
		return answer
	}

	function draw(selected = null) {
		if (!data) return
		const wide = width()
		const lanes = placeMarks(marks.filter(({ seq }) => seq >= bounds()[0] - 1 && seq <= bounds()[1]), x, wide)
		const [lift, deep] = [true, false].map((isAbove) => heightOf(lanes.filter((mark) => Boolean(mark.above) === isAbove)))
		const top = Math.max(lift, 6)
		setHeight(top + BAR + 34 + deep)
		const nothing = data.head_seq === 0
		put(canvas,
			svg("rect.track", { x: 0, y: top, width: wide, height: BAR, rx: 3 }),
			nothing && svg("text.tick", { x: wide / 2, y: top + BAR / 2 + 4, "text-anchor": "middle" }, "no seq was given out yet"),
			pieces(data.ranges, x, top),
			data.archived_seq >= bounds()[0] && svg("rect.archive-line", { x: 0, y: top + BAR + 2, width: Math.min(x(data.archived_seq + 1), wide), height: 3 }),
			drawMarks(lanes, { top, bar: BAR, label: top + BAR + 40 }),
			ticks(bounds(), x, wide, top + BAR), // drawn after the marks, so that no line runs through a number
			selected && svg("rect.selection", { x: x(selected[0]), y: top, width: x(selected[1]) - x(selected[0]) + 1, height: BAR }))
		describe()
		list()
	}

	function describe() {
		const sums = {}
		for (const { state, from_seq: first, to_seq: last } of data.ranges) sums[state] = (sums[state] ?? 0) + last - first + 1
		put(legend, legendOf(sums), data.archived_seq > 0 && h("li", h("i.swatch.archive-line"), "In the archive up to ", h("b", whole(data.archived_seq))))
		const [from, to] = bounds()
		put(shownWindow, data.head_seq === 0 ? "" : `Seqs ${range(from, to)}${view ? ` of ${whole(data.head_seq)}` : ""}${data.resolution > 1 ? `, in cells of ${count(data.resolution, "seq")}: zoom in for exact ranges` : ", exact"}`)
		canvas.setAttribute("aria-label", `Timeline of ${topic}, seqs ${range(from, to)}: ${Object.entries(sums).map(([state, size]) => `${whole(size)} ${STATES[state] ?? state}`).join(", ")}. ${ZOOM_KEYS}`)
	}

	function list() {
		if (!all.open || !data) return
		const rows = data.ranges.slice(0, 500)
		put(listed, plainTable("Ranges", ["First seq#", "Last seq#", "Seqs#", "State"], rows.map((one) => [
			num(one.from_seq), num(one.to_seq), num(one.to_seq - one.from_seq + 1), [swatch(one.state), words(one)],
		])),
		data.ranges.length > rows.length && h("p.note", `${whole(data.ranges.length - rows.length)} more: zoom in to list them.`))
	}

	function hover(event) {
		if (data.head_seq === 0) return
		const found = under(event.clientX - canvas.getBoundingClientRect().left)
		if (found) showTip(event, h("b", `Seq ${range(found.from_seq, found.to_seq)}`), h("div", words(found)), h("div.faint", count(found.to_seq - found.from_seq + 1, "seq"), unread(marks, found.to_seq)))
	}

	/** The range under a pixel; one that was lost before the others, because it may be narrow. */
	function under(at) {
		const near = data.ranges.filter((one) => x(one.from_seq) <= at + 1 && x(one.to_seq + 1) >= at - 1)
		return near.find((one) => LOST.has(one.state)) ?? near.find((one) => x(one.from_seq) <= at && x(one.to_seq + 1) >= at) ?? near[0]
	}

	return {
		element,
		refresh,
		/** Set the markers: `{seq, label, detail, kind, above}`. `seq` is the last one that was read. */
		mark(next) {
			marks = next
			draw()
		},
	}
}

/** Which of the readers have not read a seq. */
export function unread(marks, seq) {
	const behind = marks.filter((mark) => mark.seq < seq)
	return behind.length ? `; not read yet by ${behind.map((mark) => mark.name).join(", ")}` : ""
}

function words(one) {
	if (one.state !== "merged") return STATES[one.state] ?? one.state
	return `About ${short(one.live)} live, ${short(one.deleted)} deleted, ${short(one.lost)} lost`
}

/** The ranges as rectangles. A lost range is at least two pixels wide, and drawn over the others. */
function pieces(ranges, x, top) {
	const sorted = [...ranges].sort((a, b) => LOST.has(a.state) - LOST.has(b.state))
	return sorted.map((one) => {
		const left = x(one.from_seq)
		const width = Math.max(x(one.to_seq + 1) - left, LOST.has(one.state) ? 2 : 0.75)
		if (one.state !== "merged") return svg("rect", { class: `state ${one.state}`, x: left.toFixed(2), y: top, width: width.toFixed(2), height: BAR })
		const size = Math.max(one.live + one.deleted + one.lost, 1)
		let y = top + BAR
		return ["live", "deleted", "lost"].map((part) => {
			const height = (one[part] / size) * BAR
			y -= height
			return height > 0 && svg("rect", { class: `state ${part === "lost" ? "mixed" : part}`, x: left.toFixed(2), y: y.toFixed(2), width: width.toFixed(2), height: height.toFixed(2) })
		})
	})
}

function ticks([from, to], x, wide, bottom) {
	const wanted = Math.max(Math.floor(wide / 110), 2)
	const raw = (to - from + 1) / wanted
	const power = 10 ** Math.floor(Math.log10(Math.max(raw, 1)))
	const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw) ?? power
	const found = []
	for (let seq = Math.ceil(from / step) * step; seq <= to; seq += step) found.push(seq)
	if (found[0] !== from && x(found[0] ?? to) > 60) found.unshift(from)
	return found.map((seq) => {
		const at = x(seq) + (x(seq + 1) - x(seq)) / 2
		return tick(at, bottom + 6, wide, seq < 1e6 ? whole(seq) : short(seq))
	})
}

/** A tick of an axis with its label, which stays inside. */
export function tick(at, y, wide, text) {
	const anchor = at < 24 ? "start" : at > wide - 30 ? "end" : "middle"
	return [svg("line.tick-line", { x1: at, x2: at, y1: y, y2: y + 5 }),
		svg("text.tick", { x: anchor === "start" ? Math.max(at - 4, 0) : Math.min(at, wide), y: y + 17, "text-anchor": anchor }, text)]
}

/** The states in a chart, with their numbers. */
export function legendOf(sums) {
	return Object.entries(STATES).filter(([state]) => sums[state] >= 0.5).map(([state, text]) => h("li", swatch(state), text, " ", h("b", whole(sums[state]))))
}

/** Give each marker a lane in which its label does not cover another, the last one the first. `x` returns the place of a seq. */
export function placeMarks(marks, x, wide) {
	const taken = { true: [], false: [] }
	return [...marks].sort((a, b) => b.seq - a.seq).map((mark) => {
		const at = Math.min(Math.max(x(mark.seq + 1), 1), wide - 1)
		const size = mark.label.length * 6.6 + 16
		const left = at + size > wide ? at - size : at
		const lanes = taken[Boolean(mark.above)]
		let lane = lanes.findIndex((labels) => labels.every(([from, to]) => left + size < from || left > to))
		if (lane < 0) lane = Math.min(lanes.length, MAX_LANES - 1)
		;(lanes[lane] ??= []).push([left, left + size])
		return { ...mark, at, flipped: left !== at, lane }
	})
}

/** The height of the labels of markers. */
export const heightOf = (placed) => Math.max(0, ...placed.map((mark) => mark.lane + 1)) * LANE

/** Draw markers over the bar from `top` on, and their labels from `label` on downwards, or above it. */
export function drawMarks(placed, { top, bar, label }) {
	const y = (mark) => (mark.above ? top - 5 - mark.lane * LANE : label + mark.lane * LANE)
	const line = (mark) => svg("line", { class: `mark ${mark.kind}`, x1: mark.at, x2: mark.at, y1: mark.above ? y(mark) - 6 : top === 0 ? 0 : top + bar, y2: mark.above ? top : y(mark) - 2 })
	return [placed.map(line), placed.map((mark) => svg("g", { class: `mark ${mark.kind}` },
		svg("text", { x: mark.at + (mark.flipped ? -5 : 5), y: y(mark), "text-anchor": mark.flipped ? "end" : "start" }, mark.label),
		svg("title", `${mark.label}: ${mark.detail}`)))]
}

// --- zoom along a horizontal axis: drag over a part, double-click for everything, or the keys

export const ZOOM_KEYS = "Plus and minus zoom, arrow keys move, zero shows everything."
const DRAG_PX = 4
const TIP_PX = 110 // half of its width

/** A frame around a canvas, with a tip that is hidden when the pointer leaves. `draw` is called when its size changes. */
export function chartFrame(canvas, draw, signal) {
	const tip = h("div.tip", { hidden: true })
	const frame = h("div.timeline-frame", canvas, tip)
	const observer = new ResizeObserver(draw)
	observer.observe(frame)
	signal.addEventListener("abort", () => observer.disconnect())
	canvas.addEventListener("pointerleave", () => (tip.hidden = true))
	const width = () => Math.max(frame.clientWidth, 1)
	return {
		frame,
		width,
		setHeight(height) {
			canvas.setAttribute("viewBox", `0 0 ${width()} ${height}`)
			canvas.setAttribute("height", height)
		},
		/** Show a tip near the pointer. */
		showTip(event, ...content) {
			const box = canvas.getBoundingClientRect()
			put(tip, content)
			tip.hidden = false
			tip.style.left = `${Math.min(Math.max(event.clientX - box.left, TIP_PX), Math.max(box.width - TIP_PX, TIP_PX))}px`
		},
	}
}

/** `domain()` returns the ends of the axis, null while there is none; `look(range)` shows a part, null everything. */
export function zoomable(canvas, { domain, look, drawDrag, onClick, hover }) {
	let drag = null
	const share = (event) => {
		const box = canvas.getBoundingClientRect()
		return Math.min(Math.max((event.clientX - box.left) / Math.max(box.width, 1), 0), 1)
	}
	const valueAt = (event) => {
		const [from, to] = domain()
		return from + share(event) * (to - from)
	}
	const scale = (factor) => {
		const [from, to] = domain()
		const at = (from + to) / 2
		look([at - (at - from) * factor, at + (to - at) * factor])
	}
	const shift = (part) => {
		const [from, to] = domain()
		look([from + (to - from) * part, to + (to - from) * part])
	}
	const keys = { "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), 0: () => look(null), ArrowLeft: () => shift(-0.25), ArrowRight: () => shift(0.25) }
	const moved = (event) => Math.abs(event.clientX - drag.x) > DRAG_PX
	const selected = (event) => [drag.from, valueAt(event)].sort((a, b) => a - b)

	canvas.addEventListener("keydown", (event) => {
		if (!keys[event.key] || !domain() || event.ctrlKey || event.metaKey) return
		event.preventDefault()
		keys[event.key]()
	})
	canvas.addEventListener("pointerdown", (event) => {
		if (!domain() || event.button !== 0) return
		drag = { from: valueAt(event), x: event.clientX }
		canvas.setPointerCapture(event.pointerId)
	})
	canvas.addEventListener("pointermove", (event) => {
		if (!domain()) return
		hover(event, valueAt(event))
		if (drag && moved(event)) drawDrag(selected(event))
	})
	canvas.addEventListener("pointerup", (event) => {
		if (!drag) return
		const range = moved(event) ? selected(event) : null
		drag = null
		if (range) look(range)
		else onClick(valueAt(event))
	})
	canvas.addEventListener("dblclick", () => look(null))
	return { scale }
}
