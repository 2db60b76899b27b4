/** JSON values as text with colours, and as a tree that folds. Values are text nodes: markup in them is shown as it is. */

import { h, put } from "./dom.js"

const LONG_STRING = 400
const MANY = 100
const LINE = 400

/** One line of JSON with colours, cut at a few hundred characters. */
export function jsonLine(value) {
  const text = JSON.stringify(value) ?? "null"
  const cut = text.length > LINE ? `${text.slice(0, LINE)}…` : text
  return h("code", { class: "json line" }, paint(cut))
}

/** A number that JavaScript cannot hold as it was written, such as 9007199254740993 or 1.10. */
export class ExactNumber {
  constructor(source) {
    this.source = source
  }

  toJSON() {
    return JSON.rawJSON?.(this.source) ?? Number(this.source)
  }
}

/** Parse JSON, and keep numbers as they were written where the browser can. */
export function parseExact(text) {
  return JSON.parse(text, (_, value, context) => (typeof value === "number" && context?.source && String(value) !== context.source ? new ExactNumber(context.source) : value))
}

/** Whether a value that was parsed without `parseExact` may have lost digits. */
export function mayBeInexact(value) {
  if (typeof value === "number") return Math.abs(value) > Number.MAX_SAFE_INTEGER
  return value !== null && typeof value === "object" && Object.values(value).some(mayBeInexact)
}

const TOKEN = /("(?:[^"\\]|\\.)*"?)(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)/g

function paint(text) {
  const parts = []
  let at = 0
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > at) parts.push(text.slice(at, match.index))
    const kind = match[1] ? (match[2] ? "key" : "string") : match[3] ? "number" : "word"
    parts.push(h("span", { class: kind }, match[1] ?? match[0]))
    if (match[2]) parts.push(match[2])
    at = match.index + match[0].length
  }
  parts.push(text.slice(at))
  return parts
}

/** A tree of a value. Objects and arrays open and close; the first two levels are open. */
export function jsonTree(value) {
  return h("div", { class: "json tree" }, branch(null, value, 0, true))
}

function branch(name, value, depth, last) {
  const comma = last ? "" : ","
  const label = name === null ? [] : [h("span", { class: "key" }, JSON.stringify(name)), ": "]
  if (value === null || typeof value !== "object" || value instanceof ExactNumber) return h("div", { class: "leaf" }, label, scalar(value), comma)
  const entries = Array.isArray(value) ? value.map((item) => [null, item]) : Object.entries(value)
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"]
  if (entries.length === 0) return h("div", { class: "leaf" }, label, open + close, comma)
  const inner = h("div", { class: "inner" })
  let filled = 0
  const more = () => {
    const next = entries.slice(filled, filled + MANY)
    filled += next.length
    inner.append(...next.map(([key, item], at) => branch(key, item, depth + 1, filled - next.length + at === entries.length - 1)))
    if (filled < entries.length) {
      const rest = h("button", { type: "button", class: "link", on: { click: () => (rest.remove(), more()) } }, `${entries.length - filled} more`)
      inner.append(rest)
    }
  }
  const details = h("details", { on: { toggle: () => details.open && filled === 0 && more() } },
    h("summary", {}, label, open, h("span", { class: "folded" }, `… ${entries.length} ${Array.isArray(value) ? "items" : "fields"} ${close}${comma}`)),
    inner, h("div", { class: "close" }, close, comma))
  if (depth < 2) {
    details.open = true
    more()
  }
  return details
}

function scalar(value) {
  const number = typeof value === "number" || value instanceof ExactNumber
  const kind = typeof value === "string" ? "string" : number ? "number" : "word"
  const text = JSON.stringify(value)
  if (text.length <= LONG_STRING) return h("span", { class: kind }, text)
  const shown = h("span", { class: kind }, `${text.slice(0, LONG_STRING)}…`)
  const all = h("button", { type: "button", class: "link", on: { click: () => (put(shown, text), all.remove()) } }, `show all ${text.length} characters`)
  return h("span", {}, shown, " ", all)
}
