/** JSON values as text with colours, and as a tree that folds. Values are text nodes: markup in them is shown as it is. */

import { h, put, span } from "./dom.js"
import { compact } from "./exact.js"
import { count } from "./format.js"

const LONG_STRING = 400
const MANY = 100
const LINE = 400

/** One line of a payload with colours, cut at a few hundred characters. */
export function jsonLine(json) {
  return h("code.json.line", paint(compact(json.source, LINE)))
}

const TOKEN = /("(?:[^"\\]|\\.)*"?)(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)/g

function paint(text) {
  const parts = []
  let at = 0
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > at) parts.push(text.slice(at, match.index))
    const kind = match[1] ? (match[2] ? "key" : "string") : match[3] ? "number" : "word"
    parts.push(span(kind, match[1] ?? match[0]))
    if (match[2]) parts.push(match[2])
    at = match.index + match[0].length
  }
  parts.push(text.slice(at))
  return parts
}

/** One line of a payload that opens into its tree. */
export function jsonFold(json) {
  const details = h("details", { on: { toggle: () => details.open && details.childElementCount === 1 && details.append(jsonTree(json)) } }, h("summary", { "data-row": "" }, jsonLine(json)))
  return details
}

/** A tree of a payload. Objects and arrays open and close; the first two levels are open. */
export function jsonTree(json) {
  return h("div.json.tree", branch(null, json.node, 0, true))
}

function branch(name, node, depth, last) {
  const comma = last ? "" : ","
  const label = name === null ? [] : [span("key", name), ": "]
  if (node.source !== undefined) return h("div.leaf", label, scalar(node.source), comma)
  const { entries, open, close } = node
  if (entries.length === 0) return h("div.leaf", label, open + close, comma)
  const inner = h("div.inner")
  let filled = 0
  const more = () => {
    const next = entries.slice(filled, filled + MANY)
    filled += next.length
    inner.append(...next.map(([key, item], at) => branch(key, item, depth + 1, filled - next.length + at === entries.length - 1)))
    if (filled < entries.length) {
      const rest = h("button.link", { type: "button", on: { click: () => (rest.remove(), more()) } }, `${entries.length - filled} more`)
      inner.append(rest)
    }
  }
  const details = h("details", { on: { toggle: () => details.open && filled === 0 && more() } },
    h("summary", label, open, span("folded", `… ${count(entries.length, open === "[" ? "item" : "field")} ${close}${comma}`)),
    inner, h("div.close", close, comma))
  if (depth < 2) {
    details.open = true
    more()
  }
  return details
}

function scalar(text) {
  const kind = text[0] === '"' ? "string" : /[-0-9]/.test(text[0]) ? "number" : "word"
  if (text.length <= LONG_STRING) return span(kind, text)
  const shown = span(kind, `${text.slice(0, LONG_STRING)}…`)
  const all = h("button.link", { type: "button", on: { click: () => (put(shown, text), all.remove()) } }, `show all ${text.length} characters`)
  return h("span", shown, " ", all)
}
