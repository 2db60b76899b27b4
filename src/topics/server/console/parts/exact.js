/**
 * JSON as it was written: the API returns payloads token for token, and the console keeps their text beside the value, because
 * JavaScript rounds long numbers, prints 1.10 as 1.1, and drops members with the same name.
 */

import { h, put, span } from "./dom.js"
import { count } from "./format.js"

const SPACE = new Set([" ", "\t", "\n", "\r"])

/** A payload: `value` is what JavaScript makes of it, `source` is its text. */
export class Json {
	#find
	#source = null

	/** `find` returns the text. It is called once, when the text is needed. */
	constructor(value, find) {
		this.value = value
		this.#find = find
	}

	/** Read JSON text. Throw `SyntaxError` if it is none. */
	static parse(text) {
		return new Json(JSON.parse(text), () => text.trim())
	}

	get source() {
		return (this.#source ??= this.#find())
	}

	/** The text as a tree: `{source}` for a scalar, otherwise `{open, close, entries}` with pairs of key text and node. */
	get node() {
		return treeOf(this.source)
	}
}

/** Parse an answer or an event. The `data` and `meta` of the records or jobs in it are `Json`. */
export function parseAnswer(text) {
	const answer = JSON.parse(text)
	if (answer === null || typeof answer !== "object") return answer
	for (const [field, rows] of Object.entries(answer)) {
		if (!Array.isArray(rows)) continue
		let slices = null
		const textOf = (at, name) => (slices ??= slicesOf(text, field))[at][name]
		rows.forEach((row, at) => {
			for (const name of ["data", "meta"]) {
				if (row?.$seq !== undefined && row[name] !== undefined) row[name] = new Json(row[name], () => textOf(at, name))
			}
		})
	}
	return answer
}

/** Encode a value as JSON. Payloads in it keep their text. Throw a `TypeError` for a number that JSON does not have. */
export function encode(value) {
	if (value instanceof Json) return value.source
	if (typeof value === "number" && !Number.isFinite(value)) throw new TypeError(`JSON has no ${value}`)
	if (Array.isArray(value)) return `[${value.map((item) => encode(item === undefined ? null : item)).join(",")}]`
	if (value === null || typeof value !== "object") return JSON.stringify(value)
	const members = Object.entries(value).filter(([, member]) => member !== undefined)
	return `{${members.map(([name, member]) => `${JSON.stringify(name)}:${encode(member)}`).join(",")}}`
}

/** The first characters of JSON text, without the spaces between its tokens. */
export function compact(text, most) {
	let line = ""
	for (let at = 0; at < text.length && line.length <= most;) {
		const end = text[at] === '"' ? endOfString(text, at) : at + 1
		if (!SPACE.has(text[at])) line += text.slice(at, Math.min(end, at + most + 1))
		at = end
	}
	return line.length > most ? `${line.slice(0, most)}…` : line
}

/** JSON text on several lines. */
export function indent(node, depth = 0) {
	if (node.source !== undefined) return node.source
	if (node.entries.length === 0) return node.open + node.close
	const space = "  ".repeat(depth + 1)
	const lines = node.entries.map(([key, inner]) => `${space}${key === null ? "" : `${key}: `}${indent(inner, depth + 1)}`)
	return `${node.open}\n${lines.join(",\n")}\n${"  ".repeat(depth)}${node.close}`
}

/**
 * Parse valid JSON text into a tree, with a stack of its own: text can be nested deeper than calls can.
 * Values below the given number of levels are leaves.
 */
function treeOf(text, levels = Infinity) {
	const root = { entries: [] }
	const stack = [root]
	let key = null
	for (let at = skip(text, 0); at < text.length; at = skip(text, at)) {
		const sign = text[at]
		if (sign === "," || sign === ":") at++
		else if (sign === "}" || sign === "]") {
			stack.pop()
			at++
		} else if ((sign === "{" || sign === "[") && stack.length <= levels) {
			const inner = { open: sign, close: sign === "{" ? "}" : "]", entries: [] }
			stack.at(-1).entries.push([key, inner])
			stack.push(inner)
			key = null
			at++
		} else {
			const end = endOfValue(text, at)
			const source = text.slice(at, end)
			if (key === null && stack.at(-1).open === "{") key = source
			else {
				stack.at(-1).entries.push([key, { source }])
				key = null
			}
			at = end
		}
	}
	return root.entries[0][1]
}

/** The texts of the members of each row in an array of the answer. */
function slicesOf(text, field) {
	const [, rows] = treeOf(text, 3).entries.findLast(([key]) => JSON.parse(key) === field)
	return rows.entries.map(([, row]) => Object.fromEntries((row.entries ?? []).map(([key, { source }]) => [JSON.parse(key), source])))
}

function skip(text, at) {
	while (SPACE.has(text[at])) at++
	return at
}

function endOfValue(text, at) {
	let depth = 0
	do {
		const sign = text[at]
		if (sign === '"') at = endOfString(text, at)
		else {
			if (sign === "{" || sign === "[") depth++
			else if (sign === "}" || sign === "]") depth--
			else if (depth === 0) return endOfScalar(text, at)
			at++
		}
	} while (depth > 0)
	return at
}

function endOfScalar(text, at) {
	if (text[at] === '"') return endOfString(text, at)
	while (at < text.length && !SPACE.has(text[at]) && !",]}:".includes(text[at])) at++
	return at
}

/** The place after the string that begins at a place. A quote after an odd number of backslashes does not end it. */
function endOfString(text, at) {
	for (let end = text.indexOf('"', at + 1); ; end = text.indexOf('"', end + 1)) {
		if (end < 0) return text.length
		let before = end
		while (text[before - 1] === "\\") before--
		if ((end - before) % 2 === 0) return end + 1
	}
}

// --- payloads as text with colours, and as a tree that folds. Values are text nodes: markup in them is shown as it is.

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
