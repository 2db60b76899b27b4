/**
 * The records of a topic over time: a bar per interval, by what has become of its records. Times come from `/v0/samples?topic=`,
 * states from the timeline of the same seqs.
 */

import { h, put, svg, swatch } from "./dom.js"
import { bytes, clock, count, date, duration, range, rate, short, shortClock, shortDate } from "./format.js"
import { session, setQuery, topicPath } from "./session.js"
import { LOST, STATES, ZOOM_KEYS, chartFrame, drawMarks, heightOf, legendOf, placeMarks, tick, unread, zoomable } from "./timeline.js"
import { button, liveText, segmented } from "./ui.js"

const HEIGHT = 132
const BAR_PX = 9
const SPANS = [["15m", 900_000], ["1h", 3_600_000], ["24h", 86_400_000], ["7d", 604_800_000], ["all", Infinity]]
const TICKS_MS = [1e3, 5e3, 15e3, 60e3, 300e3, 900e3, 36e5, 3 * 36e5, 6 * 36e5, 864e5, 7 * 864e5, 30 * 864e5]

/** Draw the activity of a topic. `state()` is its state, `onPick(seq)` is called for a click on a bar. */
export function activity(topic, { signal, state, query, onPick }) {
	let span = SPANS.some(([name]) => name === query.get("span")) ? query.get("span") : null // null: chosen by the age of the topic
	let zoomed = /^\d+-\d+$/.test(query.get("time") ?? "") ? query.get("time").split("-").map(Number) : null
	let unit = query.get("unit") === "bytes" ? "bytes" : "records"
	let data = null
	let marks = []
	let asked = 0

	const canvas = svg("svg.chart.activity", { tabindex: 0, role: "application" })
	const { frame, showTip, setHeight, width } = chartFrame(canvas, () => draw(), signal)
	const legend = h("ul.states")
	const shownWindow = liveText()
	const spans = segmented("Time range", SPANS.map(([name]) => [name, name]), null, (name) => {
		span = name
		look(null, { span: name })
	})
	const units = segmented("Unit", [["records", "Records"], ["bytes", "Bytes"]], unit, (name) => {
		unit = name
		setQuery({ unit: name === "bytes" ? name : null })
		draw()
	})
	const out = button("Zoom out", () => look(null), { kind: "small", hidden: true })
	const element = h("div.timeline-box", h("div.toolbar", spans.element, units.element, out, shownWindow), frame, legend)

	const x = (ts) => ((ts - data.from) / (data.to - data.from)) * width()
	const barAt = (ts) => data.bars[Math.min(Math.floor(((ts - data.from) / (data.to - data.from)) * data.bars.length), data.bars.length - 1)]
	zoomable(canvas, {
		domain: () => data && [data.from, data.to], look, hover, drawDrag: draw,
		onClick: (ts) => barAt(ts).last >= barAt(ts).first && onPick(barAt(ts).first),
	})

	/** Show a window of time; null shows the chosen range. */
	function look(next, changes = {}) {
		const over = next ? Math.max(next[1] - session.now(), 0) : 0
		zoomed = next && next[1] - next[0] >= 1000 ? next.map((ts) => Math.round(ts - over)) : null
		setQuery({ time: zoomed?.join("-"), ...changes }, { push: true })
		void refresh().catch(() => {})
	}

	/** The window that is asked for. Without a choice, it is the shortest range with the age or the last write of the topic. */
	function wanted() {
		if (zoomed) return zoomed
		const now = session.now()
		const { epoch, last_write_ts: written } = state() ?? {}
		const age = Math.max(now - (epoch ?? now), 60_000)
		const chosen = span ?? (age < 3_600_000 ? "all" : SPANS.find(([, ms]) => ms >= Math.min(age, 3_600_000) && now - (written ?? now) < ms)[0])
		spans.set(chosen)
		return [now - Math.min(SPANS.find(([name]) => name === chosen)[1], chosen === "all" ? age : Infinity), now].map(Math.round)
	}

	async function refresh() {
		const turn = ++asked
		const [from, to] = wanted()
		const points = Math.min(Math.max(Math.floor(width() / BAR_PX), 20), 160)
		const { rows } = await session.get(`/v0/samples?topic=${encodeURIComponent(topic)}&from_ts=${from}&to_ts=${to}&points=${points}`, signal)
		const [first, last] = [rows[0][1] + 1, rows.at(-1)[1]]
		const answer = await session.get(topicPath(topic, `/timeline?ranges=600&from_seq=${Math.max(first, 1)}&to_seq=${Math.max(last, first, 1)}`), signal)
		if (turn === asked) {
			data = { from, to, bars: barsOf(rows, last >= first ? answer.ranges : []) }
			draw()
		}
		return answer
	}

	function draw(selected = null) {
		if (!data) return
		out.hidden = !zoomed
		const wide = width()
		const { bars } = data
		const seconds = (data.to - data.from) / bars.length / 1000
		const value = (bar) => (unit === "bytes" ? bar.bytes : bar.last - bar.first + 1)
		const most = scaleOf(bars.map(value))
		const y = (amount) => (amount / most) * (HEIGHT - 18)
		const slot = wide / bars.length
		const placed = placeMarks(marks.filter((mark) => mark.lag), (seq) => timeX(seq - 1), wide)
		setHeight(HEIGHT + 26 + heightOf(placed))
		const perSecond = (amount) => (unit === "bytes" ? `${bytes(amount / seconds)}/s` : rate(amount / seconds))
		const quiet = bars.every((bar) => bar.last < bar.first)
		put(canvas,
			[1, 0.5].map((part) => svg("line.grid", { x1: 0, x2: wide, y1: HEIGHT - y(most * part), y2: HEIGHT - y(most * part) })),
			bars.map((bar, at) => {
				let base = HEIGHT
				const cut = Math.min(most / Math.max(value(bar), 1), 1)
				const pieces = unit === "bytes" ? [["bytes", bar.bytes]] : Object.entries(STATES).filter(([one]) => bar.states[one] > 0).map(([one]) => [one, bar.states[one]])
				return pieces.map(([one, amount]) => {
					const tall = Math.max(y(amount * cut), amount > 0 ? 1.5 : 0)
					base -= tall
					return svg("rect", { class: `state ${one}`, x: (at * slot + 0.5).toFixed(1), width: Math.max(slot - 1.5, 0.8).toFixed(1), y: base.toFixed(1), height: tall.toFixed(1) })
				})
			}),
			svg("line.base", { x1: 0, x2: wide, y1: HEIGHT, y2: HEIGHT }),
			!quiet && svg("text.tick", { x: 0, y: 12 }, perSecond(most)),
			quiet && svg("text.tick", { x: wide / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no record of this time: choose a longer range"),
			drawMarks(placed, { top: 0, bar: HEIGHT, label: HEIGHT + 40 }),
			timeTicks(wide),
			selected && svg("rect.selection", { x: x(selected[0]), y: 0, width: x(selected[1]) - x(selected[0]) + 1, height: HEIGHT }))
		describe(seconds, most, perSecond)
	}

	/** Where on the axis the record after a seq was committed. */
	function timeX(seq) {
		const { bars } = data
		const at = bars.findIndex((bar) => bar.last > seq)
		if (at < 0) return width()
		const inside = Math.max(seq + 1 - bars[at].first, 0) / Math.max(bars[at].last - bars[at].first + 1, 1)
		return ((at + inside) / bars.length) * width()
	}

	function timeTicks(wide) {
		const step = TICKS_MS.find((ms) => (data.to - data.from) / ms <= wide / 90) ?? TICKS_MS.at(-1)
		const zone = new Date(data.from).getTimezoneOffset() * 60_000
		const found = []
		for (let ts = Math.ceil((data.from - zone) / step) * step + zone; ts <= data.to; ts += step) found.push(ts)
		const label = step < 60e3 ? clock : step < 864e5 ? (ts) => ((ts - zone) % 864e5 ? shortClock(ts) : shortDate(ts)) : shortDate
		return found.map((ts) => {
			const at = x(ts)
			return tick(at, HEIGHT, wide, label(ts))
		})
	}

	function describe(seconds, most, perSecond) {
		const sums = {}
		for (const bar of data.bars) for (const [one, amount] of Object.entries(bar.states)) sums[one] = (sums[one] ?? 0) + amount
		const current = marks.filter((mark) => !mark.lag).map((mark) => mark.name)
		const written = data.bars.reduce((sum, bar) => sum + bar.last - bar.first + 1, 0)
		put(legend, legendOf(sums), current.length > 0 && h("li", `Up to date: ${current.join(", ")}`))
		const print = data.to - data.from < 864e5 ? clock : date
		const text = `${print(data.from)} to ${print(data.to)}: ${count(written, "record")}, a bar is ${duration(Math.round(seconds) * 1000 || 1000)}`
		put(shownWindow, text)
		canvas.setAttribute("aria-label", `Records of ${topic} over time. ${text}; at most ${perSecond(most)}. ${ZOOM_KEYS}`)
	}

	function hover(event, ts) {
		const bar = barAt(ts)
		const seconds = (bar.to - bar.from) / 1000
		const size = bar.last - bar.first + 1
		showTip(event, h("div.time", `${bar.to - bar.from < 6e5 ? clock(bar.from) : date(bar.from)} to ${clock(bar.to)}`),
			size <= 0 ? h("div", "no records") : [
				h("b", `${count(size, "record")}, ${rate(size / seconds)}, ${bytes(bar.bytes / seconds)}/s`), h("div", `Seqs ${range(bar.first, bar.last)}${unread(marks, bar.last)}`),
				Object.entries(STATES).filter(([one]) => one !== "live" && bar.states[one] >= 0.5).map(([one, text]) => h("div", swatch(one), `${short(bar.states[one])} ${LOST.has(one) ? "lost: " : ""}${text.toLowerCase()}`)),
			])
	}

	return {
		element,
		refresh,
		mark(next) {
			marks = next
			draw()
		},
	}
}

/** The highest value, or less: a few bars far above all others are cut. */
function scaleOf(values) {
	const sorted = values.filter((value) => value > 0).sort((a, b) => a - b)
	const most = sorted.at(-1) ?? 1
	const usual = sorted[Math.floor(sorted.length * 0.95)] ?? most
	return sorted.length > 20 && most > usual * 6 ? usual * 1.5 : most
}

/** A bar for each two neighbouring rows: its seqs, its bytes, and how many of its seqs have each state. */
function barsOf(rows, ranges) {
	const bars = []
	let at = 0
	for (let number = 1; number < rows.length; number++) {
		const [[from, before, had], [to, head, has]] = [rows[number - 1], rows[number]]
		const bar = { from, to, first: before + 1, last: head, bytes: Math.max(has - had, 0), states: {} }
		while (at < ranges.length && ranges[at].to_seq < bar.first) at++
		for (let next = at; next < ranges.length && ranges[next].from_seq <= bar.last; next++) {
			const one = ranges[next]
			const shared = Math.min(one.to_seq, bar.last) - Math.max(one.from_seq, bar.first) + 1
			const part = shared / (one.to_seq - one.from_seq + 1)
			const found = one.state === "merged" ? [["live", one.live * part], ["deleted", one.deleted * part], ["mixed", one.lost * part]] : [[one.state, shared]]
			for (const [state, amount] of found) if (amount > 0) bar.states[state] = (bar.states[state] ?? 0) + amount
		}
		bars.push(bar)
	}
	return bars
}
