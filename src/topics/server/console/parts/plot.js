/** Time plots as SVG: lines over a common time axis, with the values under the pointer. */

import { h, put, span, svg, swatch } from "./dom.js"
import { clock, date, duration, shortClock } from "./format.js"

const WIDTH = 1000
const HEIGHT = 100
const LEAST_MS = 300_000
const TOP = 16 // room for the label of the scale, so that no line runs through it

/**
 * A plot. `set(times, series)` draws series `{name, color, values, area}`; a value is null if there is none. Times that are further
 * apart than `gapMs` are not joined. The axis shows `spanMs` at most, and its ends with their dates if `ends`.
 */
export function plot(title, { format, spanMs = 3_600_000, gapMs = 15_000, floor = 1, binary = false, ends = false } = {}) {
	const current = span("current")
	const canvas = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title })
	const top = span("axis top")
	const from = span("axis from")
	const to = span("axis to", "now")
	const tip = h("div.tip", { hidden: true })
	const line = h("div.cross", { hidden: true })
	const legend = h("div.legend")
	const frame = h("div.plot-frame", canvas, top, line, tip)
	const element = h("figure.plot",
		h("figcaption", span("name", title), current), frame,
		h("div.axis-row", { "aria-hidden": "true" }, from, legend, to))
	let drawn = null
	const shown = (value) => (value === null ? "–" : format(value))

	frame.addEventListener("pointermove", (event) => {
		if (!drawn || drawn.times.length === 0) return
		const box = frame.getBoundingClientRect()
		const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1)
		const wanted = drawn.start + share * (drawn.end - drawn.start)
		const at = nearest(drawn.times, wanted)
		const left = ((drawn.times[at] - drawn.start) / (drawn.end - drawn.start)) * 100
		line.hidden = tip.hidden = false
		line.style.left = `${left}%`
		tip.classList.toggle("left", left > 60)
		tip.style.left = `${left}%`
		put(tip, h("div.time", clock(drawn.times[at])), drawn.series.map((one) => h("div",
			swatch(one.color), one.name, h("b", shown(one.values[at])))))
	})
	frame.addEventListener("pointerleave", () => (line.hidden = tip.hidden = true))

	return {
		element,
		show(ms) {
			gapMs *= ms / spanMs
			spanMs = ms
		},
		set(times, series) {
			const end = times.length ? times[times.length - 1] : Date.now()
			const start = Math.max(end - spanMs, Math.min(times[0] ?? end, end - LEAST_MS))
			const most = Math.max(floor, ...series.flatMap((one) => one.values))
			const scale = binary ? nice(most / binaryUnit(most)) * binaryUnit(most) : format === duration ? niceTime(most) : nice(most)
			drawn = { times, series, start, end }
			put(canvas, [TOP, (TOP + HEIGHT) / 2].map((y) => svg("line.grid", { x1: 0, x2: WIDTH, y1: y, y2: y })),
				series.map((one) => strokes(times, one, { start, end, scale, gapMs })))
			put(top, format(scale))
			put(from, (ends ? date : shortClock)(start))
			if (ends) put(to, date(end))
			put(legend, series.length > 1 ? series.map((one) => h("span", swatch(one.color), one.name)) : "")
			const last = series.map((one) => one.values.at(-1) ?? null)
			put(current, times.length ? series.map((one, at) => h("span", { title: one.name }, series.length > 1 && swatch(one.color), shown(last[at]))) : "no samples yet")
			canvas.setAttribute("aria-label", times.length
				? `${title}: ${series.map((one, at) => `${one.name} now ${shown(last[at])}, highest ${format(Math.max(0, ...one.values))}`).join("; ")}`
				: `${title}: no samples yet`)
		},
	}
}

/** Plots by name, beside each other. */
export function plotGrid(plots) {
	return h("div.plots", Object.values(plots).map((one) => one.element))
}

function strokes(times, { values, color, area }, { start, end, scale, gapMs }) {
	const x = (time) => ((time - start) / (end - start)) * WIDTH
	const y = (value) => HEIGHT - (Math.max(value, 0) / scale) * (HEIGHT - TOP)
	const pieces = []
	let piece = []
	times.forEach((time, at) => {
		if (at > 0 && (time - times[at - 1] > gapMs || values[at] === null)) {
			pieces.push(piece)
			piece = []
		}
		if (time >= start && values[at] !== null) piece.push(`${x(time).toFixed(1)} ${y(values[at]).toFixed(1)}`)
	})
	pieces.push(piece)
	return pieces.filter((points) => points.length > 0).flatMap((points) => {
		const path = `M${points.join("L")}${points.length === 1 ? "h1" : ""}`
		const ends = [points[0].split(" ")[0], points[points.length - 1].split(" ")[0]]
		return [
			area && svg("path", { class: `area ${color}`, d: `${path}L${ends[1]} ${HEIGHT}L${ends[0]} ${HEIGHT}Z` }),
			svg("path", { class: `stroke ${color}`, d: path, "vector-effect": "non-scaling-stroke" }),
		]
	})
}

const NICE_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 43_200, 86_400]

/** The next round time in ms. */
function niceTime(ms) {
	return ms <= 1000 ? nice(ms) : (NICE_S.find((s) => s * 1000 >= ms) ?? Math.ceil(ms / 864e5) * 86_400) * 1000
}

/** The next round number: 1, 2, 2.5 or 5 times a power of ten. */
function nice(value) {
	const power = 10 ** Math.floor(Math.log10(value))
	return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value
}

function binaryUnit(value) {
	return 1024 ** Math.max(Math.floor(Math.log2(Math.max(value, 1)) / 10), 0)
}

function nearest(times, wanted) {
	return times.reduce((best, time, at) => (Math.abs(time - wanted) < Math.abs(times[best] - wanted) ? at : best), 0)
}
