/** Durations, sizes and counts as the command line takes and prints them: 30m, 1GiB, 10k. */

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
