/** Numbers, sizes and times as people read them. */

export const ahead = { ms: 0 } // how far the clock of the server is ahead of this one

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 })
const DAY = { month: "short", day: "2-digit" }
const MINUTE = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }
const SECOND = { ...MINUTE, second: "2-digit" }

const formatter = (parts) => {
	const format = new Intl.DateTimeFormat(undefined, parts)
	return (ts) => format.format(ts)
}
export const clock = formatter(SECOND)
export const shortClock = formatter(MINUTE)
export const shortDate = formatter(DAY)
export const date = formatter({ year: "numeric", ...DAY, ...SECOND })

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

/** How long ago by the clock of the server: "12 s ago"; "never" without a time. */
export function ago(ts) {
	if (!ts) return "never"
	const ms = Date.now() + ahead.ms - ts
	return ms < 1000 ? "now" : `${duration(Math.floor(ms / 1000) * 1000)} ago`
}

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

// --- durations, sizes and counts as the command line takes and prints them: 30m, 1GiB, 10k

export const UNIT_MS = { ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 }
const FACTORS = { "": 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30, T: 2 ** 40 }

/** An error of what was typed in. */
export function problemOf(message, code = "invalid_input") {
	return Object.assign(new Error(message), { code })
}

function refuse(text, what) {
	throw problemOf(`"${text}" is not ${what}`)
}

/** The milliseconds of 500ms, 30s, 1h30m or 7d. Throw for a number without a unit, except 0. */
export function parseDuration(text) {
	if (text === "0") return 0
	const parts = [...text.matchAll(/(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*/g)]
	if (parts.length === 0 || parts.map(([part]) => part).join("") !== text) refuse(text, "a duration: use a number with a unit, such as 500ms, 30s, 1h30m or 7d")
	return Math.round(parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNIT_MS[unit], 0))
}

/** The bytes of 1000, 64KiB or 10M. */
export function parseSize(text) {
	const found = /^(\d+)\s*(?:([KMGT])(?:i?B)?|B)?$/i.exec(text)
	if (!found) refuse(text, "a size: use bytes, or a number with KiB, MiB or GiB")
	return Number(found[1]) * FACTORS[(found[2] ?? "").toUpperCase()]
}

/** The number of 100, 10k or 2M. */
export function parseCount(text) {
	const found = /^(-?\d+)([kM]?)$/.exec(text.replaceAll(",", ""))
	if (!found) refuse(text, "a whole number, such as 100 or 10k")
	const number = Number(found[1]) * { "": 1, k: 1e3, M: 1e6 }[found[2]]
	if (!Number.isSafeInteger(number)) refuse(text, "a number that a topic can have: it is too large")
	return number
}

export function printDuration(ms) {
	let rest = ms
	return ["d", "h", "m", "s", "ms"].map((unit) => {
		const whole = Math.floor(rest / UNIT_MS[unit])
		rest -= whole * UNIT_MS[unit]
		return whole ? `${whole}${unit}` : ""
	}).join("") || "0"
}

export function printSize(size) {
	const [unit, factor] = Object.entries(FACTORS).reverse().find(([, one]) => size >= one && size % one === 0) ?? ["", 1]
	return `${size / factor}${unit && `${unit}iB`}`
}
