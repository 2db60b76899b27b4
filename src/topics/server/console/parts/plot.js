/** Time plots as SVG, drawn by hand: lines over a common time axis, with the values under the pointer. */

import { h, put, svg } from "./dom.js"
import { clock, shortClock } from "./format.js"

const WIDTH = 1000
const HEIGHT = 100
const TOP = 16 // room for the label of the scale, so that no line runs through it

/**
 * A plot of several series. `set(times, series)` draws; a series is `{name, color, values, area}` with one value per
 * time, or null if there is none. `format` prints a value. Times that are further apart than `gapMs` are not joined. The axis shows `spanMs`, or
 * what there is so far.
 */
export function plot(title, { format, spanMs = 3_600_000, leastMs = 300_000, gapMs = 15_000, floor = 1, binary = false } = {}) {
  const current = h("span", { class: "current" })
  const canvas = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title })
  const top = h("span", { class: "axis top" })
  const from = h("span", { class: "axis from" })
  const to = h("span", { class: "axis to" }, "now")
  const tip = h("div", { class: "tip", hidden: true })
  const line = h("div", { class: "cross", hidden: true })
  const legend = h("div", { class: "legend" })
  const frame = h("div", { class: "plot-frame" }, canvas, top, line, tip)
  const element = h("figure", { class: "plot" },
    h("figcaption", {}, h("span", { class: "name" }, title), current), frame,
    h("div", { class: "axis-row", "aria-hidden": "true" }, from, legend, to))
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
    put(tip, h("div", { class: "time" }, clock(drawn.times[at])), drawn.series.map((one) => h("div", {},
      h("i", { class: `swatch ${one.color}` }), one.name, h("b", {}, shown(one.values[at])))))
  })
  frame.addEventListener("pointerleave", () => (line.hidden = tip.hidden = true))

  return {
    element,
    set(times, series) {
      const end = times.length ? times[times.length - 1] : Date.now()
      const start = Math.max(end - spanMs, Math.min(times[0] ?? end, end - leastMs))
      const most = Math.max(floor, ...series.flatMap((one) => one.values))
      const scale = binary ? nice(most / binaryUnit(most)) * binaryUnit(most) : nice(most)
      drawn = { times, series, start, end }
      put(canvas, [TOP, (TOP + HEIGHT) / 2].map((y) => svg("line", { class: "grid", x1: 0, x2: WIDTH, y1: y, y2: y })),
        series.map((one) => strokes(times, one, { start, end, scale, gapMs })))
      put(top, format(scale))
      put(from, shortClock(start))
      put(legend, series.length > 1 ? series.map((one) => h("span", {}, h("i", { class: `swatch ${one.color}` }), one.name)) : "")
      const last = series.map((one) => one.values.at(-1) ?? null)
      put(current, times.length ? series.map((one, at) => h("span", { title: one.name }, series.length > 1 && h("i", { class: `swatch ${one.color}` }), shown(last[at]))) : "no samples yet")
      canvas.setAttribute("aria-label", times.length
        ? `${title}: ${series.map((one, at) => `${one.name} now ${shown(last[at])}, highest ${format(Math.max(0, ...one.values))}`).join("; ")}`
        : `${title}: no samples yet`)
    },
  }
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

/** The next round number: 1, 2, 2.5 or 5 times a power of ten. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value))
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value
}

function binaryUnit(value) {
  return 1024 ** Math.max(Math.floor(Math.log2(Math.max(value, 1)) / 10), 0)
}

function nearest(times, wanted) {
  let low = 0
  let high = times.length - 1
  while (low < high) {
    const middle = (low + high) >> 1
    if (times[middle] < wanted) low = middle + 1
    else high = middle
  }
  return low > 0 && wanted - times[low - 1] < times[low] - wanted ? low - 1 : low
}

/** A short history of values on this page, for plots that the server keeps no samples of. */
export class History {
  times = []
  values = {}

  constructor(capacity = 300) {
    this.capacity = capacity
  }

  add(figures, now = Date.now()) {
    this.times.push(now)
    for (const [name, value] of Object.entries(figures)) (this.values[name] ??= []).push(value)
    if (this.times.length > this.capacity) {
      this.times.shift()
      for (const column of Object.values(this.values)) column.shift()
    }
  }
}
