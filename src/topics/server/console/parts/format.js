/** Numbers, sizes and times as people read them. */

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 })
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" })
const SHORT_CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" })
const DATE = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
})
const SHORT_DATE = new Intl.DateTimeFormat(undefined, { month: "short", day: "2-digit" })

/** A whole number with separators: 1,234,567. */
export function whole(number) {
  return WHOLE.format(number)
}

/** A short number: 1.2k, 3.4M. */
export function short(number) {
  const size = Math.abs(number)
  for (const [unit, factor] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= factor) return trim(number / factor) + unit
  }
  return size >= 100 || Number.isInteger(number) ? WHOLE.format(number) : trim(number)
}

/** Bytes: 1.2 MiB. */
export function bytes(number) {
  for (const [unit, factor] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (number >= factor) return `${trim(number / factor)} ${unit}`
  }
  return `${WHOLE.format(number)} B`
}

/** A rate per second. */
export function rate(perSecond) {
  return `${short(perSecond)}/s`
}

/** A duration in milliseconds: 12 ms, 3.4 s, 5 m 10 s, 2 h 3 m, 4 d. */
export function duration(ms) {
  if (ms < 1000) return `${ms < 10 ? trim(ms) : WHOLE.format(ms)} ms`
  const s = ms / 1000
  if (s < 60) return `${trim(s)} s`
  if (s < 3600) return parts(s, 60, "m", 1, "s")
  if (s < 86_400) return parts(s, 3600, "h", 60, "m")
  return parts(s, 86_400, "d", 3600, "h")
}

function parts(s, large, largeUnit, small, smallUnit) {
  const rest = Math.floor((s % large) / small)
  return `${Math.floor(s / large)} ${largeUnit}${rest ? ` ${rest} ${smallUnit}` : ""}`
}

/** How long ago: "12 s ago"; "never" without a time. */
export function ago(ts, now = Date.now()) {
  if (!ts) return "never"
  const ms = now - ts
  return ms < 1000 ? "now" : `${duration(Math.floor(ms / 1000) * 1000)} ago`
}

export const clock = (ts) => CLOCK.format(ts)
export const shortClock = (ts) => SHORT_CLOCK.format(ts)
export const shortDate = (ts) => SHORT_DATE.format(ts)
export const date = (ts) => DATE.format(ts)

/** A count with its noun: 1 record, 2 records. */
export function count(number, noun, plural = `${noun}s`) {
  return `${whole(number)} ${number === 1 ? noun : plural}`
}

/** A range of seqs: "5" or "5 to 9". */
export function range(first, last) {
  return first === last ? whole(first) : `${whole(first)} to ${whole(last)}`
}

function trim(number) {
  const size = Math.abs(number)
  const text = number.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text
}
