/** A heat map: how often a figure was in which range, minute by minute. It shows a spread that a line would hide. */

import { h, put, span, svg } from "./dom.js"
import { shortClock } from "./format.js"

const COLUMNS = 60
const STEPS = [1, 2.5, 5]
const ROW = 10

/** `set(times, values)` draws; 0 means no value. Ranges end at 1, 2.5 and 5 times powers of ten. */
export function heat(title, { format, spanMs = 3_600_000 }) {
  const current = span("current")
  const canvas = svg("svg", { preserveAspectRatio: "none", role: "img" })
  const [top, bottom] = [span("axis top"), span("axis bottom")]
  const from = span("axis")
  const element = h("figure", { class: "plot heat" }, h("figcaption", {}, span("name", title), current), h("div", { class: "plot-frame" }, canvas, top, bottom),
    h("div", { class: "axis-row", "aria-hidden": "true" }, from, h("span", {}, "stronger: more often"), h("span", {}, "now")))
  return {
    element,
    set(times, values) {
      const seen = times.map((ts, at) => [ts, values[at]]).filter(([, value]) => value > 0)
      const end = times.at(-1) ?? Date.now()
      const start = Math.max(end - spanMs, Math.min(times[0] ?? end, end - 300_000))
      const buckets = seen.map(([, value]) => bucket(value))
      const [low, high] = [Math.min(...buckets, 99) - 1, Math.max(...buckets, -99) + 1]
      const cells = new Map()
      const sums = Array(COLUMNS).fill(0)
      seen.forEach(([ts], at) => {
        const column = Math.min(Math.max(Math.floor(((ts - start) / (end - start)) * COLUMNS), 0), COLUMNS - 1)
        const key = `${column} ${buckets[at]}`
        sums[column]++
        cells.set(key, (cells.get(key) ?? 0) + 1)
      })
      const rows = Math.max(high - low + 1, 1)
      canvas.setAttribute("viewBox", `0 0 ${COLUMNS} ${rows * ROW}`)
      put(canvas, [...cells].map(([key, number]) => {
        const [column, one] = key.split(" ").map(Number)
        return svg("rect", { class: "cell", x: column, y: (high - one) * ROW, width: 0.92, height: ROW - 1, opacity: (0.2 + 0.8 * (number / sums[column])).toFixed(2) })
      }))
      put(top, seen.length ? format(bound(high)) : "")
      put(bottom, seen.length ? format(bound(low)) : "")
      put(from, shortClock(start))
      const middle = seen.map(([, value]) => value).sort((a, b) => a - b)[Math.floor(seen.length / 2)]
      put(current, seen.length ? `mostly below ${format(middle)}` : "none yet")
      canvas.setAttribute("aria-label", seen.length ? `${title}: in half of the intervals below ${format(middle)}, at most ${format(bound(high - 1))}` : `${title}: none yet`)
    },
  }
}

/** The number of the range that a value is in, and the end of a range. */
const bound = (number) => STEPS[((number % 3) + 3) % 3] * 10 ** Math.floor(number / 3)
function bucket(value) {
  let number = Math.floor(Math.log10(value)) * 3
  while (bound(number) < value) number++
  return number
}
