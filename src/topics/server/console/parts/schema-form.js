/**
 * A form made from a JSON Schema, beside the JSON text of the same value, which is what is sent. A change of one changes the other.
 *
 * An editor is `{element, source}`: `source()` returns the JSON text of its part, null if that is left out.
 */

import { h, put, span } from "./dom.js"
import { Json, compact, indent } from "./exact.js"
import { button, field, input, note, select } from "./ui.js"

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/
const LIMIT = /^(min|max|exclusive|multipleOf|pattern|format)/

/** The form of a schema over a textarea. `show(error)` marks the field that an error of the server names. */
export function schemaForm(root, area) {
	const fields = new Map() // of the present form, by path
	const place = h("div.schema-form")
	const status = h("p.note", { role: "status" })
	const context = { root, fields, changed: write, rebuild: (path) => (read(true), fields.get(path).control.focus()) }
	let current = null

	/** Put the value of the form into the text. */
	function write() {
		put(status)
		const source = current.source()
		area.value = source === null ? "" : indent(Json.parse(source).node)
	}

	/** Fill the form with the value of the text. */
	function read(again = false) {
		const json = parsed(area.value)
		const isWrong = !json && area.value.trim()
		put(status, isWrong && "The text is not valid JSON: the form shows what it was.")
		if (isWrong) return
		if (!again && compact(current.source() ?? "", Infinity) === compact(area.value, Infinity)) return
		fields.clear()
		current = editor(context, root, json?.node, { path: "data", required: true })
		put(place, current.element)
	}

	area.addEventListener("input", () => read())
	read(true)
	if (!area.value) write()

	return {
		element: h("div.beside", h("div", status, place), field("Data, any JSON value", area)),
		show(error) {
			for (const { control, message } of fields.values()) {
				put(message)
				control.removeAttribute("aria-invalid")
			}
			if (error?.code !== "schema_violation") return
			const { path, rule } = error.detail
			const missing = rule.endsWith("required") && /"([^"]+)" is a required/.exec(error.message)
			let at = missing ? `${path}.${missing[1]}` : path
			while (!fields.has(at)) at = at.replace(/(\.[^.[]*|\[\d+\])$/, "") // what it is in
			const { control, message } = fields.get(at)
			put(message, error.message.replace(/^.*of the topic: /, ""))
			control.setAttribute("aria-invalid", "true")
			control.focus()
		},
	}
}

/** The value of a text; undefined if it is no JSON. */
function parsed(text) {
	try {
		return Json.parse(text)
	} catch {}
}

function editor(context, given, node, place) {
	const schema = resolve(given, context.root)
	const type = typeOf(schema)
	if (type === "object" && schema.properties && !schema.enum && (!node || node.open === "{")) return object(context, schema, node, place)
	if (type === "array" && (!node || node.open === "[")) return list(context, schema, node, place)
	return scalar(context, schema, type, node, place)
}

/** Follow references within the schema, join the parts of `allOf`, and take a value for itself or null. */
function resolve(schema, root) {
	let found = typeof schema === "object" ? schema : {}
	for (let step = 0; found.$ref?.startsWith("#") && step < 20; step++) {
		const { $ref, ...rest } = found
		found = { ...$ref.slice(1).split("/").filter(Boolean).reduce((part, name) => part?.[decodeURIComponent(name).replaceAll("~1", "/").replaceAll("~0", "~")], root), ...rest }
	}
	const others = (found.anyOf ?? found.oneOf ?? []).filter((one) => one.type !== "null")
	for (const part of [...(found.allOf ?? []), ...(others.length === 1 ? others : [])]) {
		const more = resolve(part, root)
		found = { ...more, ...found, required: [...(more.required ?? []), ...(found.required ?? [])], ...(more.properties && { properties: { ...more.properties, ...found.properties } }) }
	}
	return found
}

function typeOf({ type, properties, items }) {
	const types = [type ?? (properties ? "object" : items ? "array" : [])].flat().filter((one) => one !== "null")
	return types.length === 1 ? types[0] : null
}

/** A control with its label and what the schema says about it, which errors of the server can name. */
function labelled({ fields }, schema, type, control, { path, label = "Value", required }) {
	const message = h("p.field-error", { role: "alert" })
	fields.set(path, { control, message })
	const limits = [type === "string" ? "" : type ?? "any JSON value", ...Object.entries(schema).filter(([name]) => LIMIT.test(name)).map((one) => one.join(" "))]
	const element = field(label, control, [schema.description, limits.filter(Boolean).join(", ")].filter(Boolean).join(". ") || null)
	if (required) element.firstChild.append(span("faint", " required"))
	element.append(message)
	return element
}

/** One of several values, a text, a number, or the JSON of anything else. */
function scalar(context, schema, type, node, place) {
	let source = node ? indent(node) : null
	const isJson = !["string", "number", "integer"].includes(type) || (node && node.source === undefined)
	const values = (schema.enum ?? (type === "boolean" ? [true, false] : [])).map((one) => JSON.stringify(one))
	const isChoice = values.length > 0
	const props = { value: source === null ? "" : source[0] === '"' && !isJson ? JSON.parse(source) : source, spellcheck: false, placeholder: schema.default === undefined ? "" : `default: ${JSON.stringify(schema.default)}` }
	const now = source === null ? "" : compact(source, Infinity)
	if (now && !values.includes(now)) values.push(now)
	const control = isChoice ? select([["", place.required ? "choose" : "not set"], ...values.map((one) => [one, one[0] === '"' ? JSON.parse(one) : one])], now)
		: isJson ? h("textarea", { rows: 2, ...props }) : input(props)
	control.addEventListener("input", () => {
		const text = control.value
		const isToken = isChoice || (isJson ? parsed(text) : type !== "string" && NUMBER.test(text))
		source = text === "" ? null : isToken ? text : JSON.stringify(text) // the server says what is wrong with a text
		context.changed()
	})
	return { element: labelled(context, schema, isChoice ? "string" : type, control, place), source: () => source }
}

/** An object with its known fields. Fields that the schema does not name stay as they are in the text. */
function object(context, schema, node, place) {
	const given = new Map((node?.entries ?? []).map(([key, value]) => [JSON.parse(key), value]))
	const others = [...given.keys()].filter((name) => !Object.hasOwn(schema.properties, name))
	const build = () => {
		const members = Object.entries(schema.properties).map(([name, part]) => [name, editor(context, part, given.get(name), { path: `${place.path}.${name}`, label: name, required: schema.required?.includes(name) })])
		const sources = () => [...members.map(([name, one]) => [name, one.source()]), ...others.map((name) => [name, indent(given.get(name))])]
		return {
			content: [members.map(([, one]) => one.element), others.length > 0 && note(`Only in the text: ${others.join(", ")}`)],
			source: () => `{${sources().filter(([, text]) => text !== null).map(([name, text]) => `${JSON.stringify(name)}:${text}`).join(",")}}`,
		}
	}
	return group(context, schema, place, node, build)
}

function list(context, schema, node, place) {
	const build = () => {
		const items = []
		const rows = h("div.stack")
		const add = (value) => {
			const label = `${place.label ?? "item"} ${items.length + 1}`
			const one = editor(context, schema.items, value, { path: `${place.path}[${items.length}]`, label, open: true })
			const remove = () => {
				items.splice(items.indexOf(one), 1)
				context.changed()
				context.rebuild(place.path) // the others have new numbers
			}
			items.push(one)
			rows.append(h("div.item", one.element, button("Remove", remove, { kind: "small", "aria-label": `Remove ${label}` })))
		}
		for (const [, value] of node?.entries ?? []) add(value)
		const more = button("Add an item", () => {
			add()
			rows.lastChild.querySelector("input, select, textarea, button").focus()
			context.changed()
		}, { kind: "small" })
		return { content: [rows, more], source: () => `[${items.map((one) => one.source() ?? "null").join(",")}]` }
	}
	return group(context, schema, place, node, build)
}

/** A part with parts of its own. One that may be left out begins so. */
function group({ fields, changed }, schema, { path, label, required, open }, node, build) {
	let built = null
	const body = h("div.stack")
	const message = h("p.field-error", { role: "alert" })
	const show = (isShown) => {
		built = isShown ? build() : null
		put(body, built?.content)
		put(toggle, `${isShown ? "Leave out" : "Add"} ${label}`)
	}
	const toggle = button("", () => (show(!built), changed()), { kind: "small" })
	const element = h(label ? "fieldset" : "div", { tabIndex: -1 }, label && h("legend", label, required && span("faint", " required")), schema.description && note(schema.description), required || open ? null : toggle, body, message)
	fields.set(path, { control: element, message })
	show(required || open || node)
	return { element, source: () => built && built.source() }
}
