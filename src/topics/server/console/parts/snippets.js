/**
 * The same action as `curl`, Python and JavaScript. An action is `{method, path, body, name, args, options, positional}`: the HTTP
 * request, and the method of the clients. `positional` names options that Python takes by position.
 */

import { Json, encode } from "./exact.js"
import { topicPath as at } from "./session.js"

export function asCurl({ method, path, body }, key) {
	const parts = ["curl"]
	if (method !== "GET" && !(method === "POST" && body !== undefined)) parts.push(`-X ${method}`)
	parts.push(quote(location.origin + path))
	if (key) parts.push(`-H "authorization: Bearer $TOPICS_TOKEN"`)
	if (body !== undefined) parts.push("-H 'content-type: application/json'", `-d ${quote(encode(body))}`)
	return parts.join(" \\\n  ").replace("curl \\\n  ", "curl ")
}

export function asPython({ name, args = [], options = {}, positional = [], python }, key) {
	const token = key ? `, token=os.environ["TOPICS_TOKEN"]` : ""
	const given = [
		...args.map(pythonValue),
		...positional.map((option) => pythonValue(options[option])),
		...entries(options).filter(([option]) => !positional.includes(option)).map(([option, value]) => `${option}=${pythonValue(value)}`),
	]
	return `${key ? "import os\n" : ""}from topics.client import Topics

with Topics(${pythonValue(location.origin)}${token}) as topics:
    ${(python ?? "print(CALL)").replace("CALL", () => `topics.${name}(${given.join(", ")})`)}
`
}

export function asJavaScript({ name, args = [], options = {}, javascript }, key) {
	const token = key ? `, { token: process.env.TOPICS_TOKEN }` : ""
	const fields = entries(options).map(([option, value]) => `${camel(option)}: ${encode(value)}`)
	const given = [...args.map(encode), ...(fields.length ? [`{ ${fields.join(", ")} }`] : [])]
	const call = `topics.${camel(name)}(${given.join(", ")})`
	return `import { Topics } from "${location.origin}/client.js"

const topics = new Topics("${location.origin}"${token})
${(javascript ?? "console.log(await CALL)").replace("CALL", () => call)}
`
}

function entries(options) {
	return Object.entries(options).filter(([, value]) => value !== undefined && value !== null && value !== "")
}

function camel(name) {
	return name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase())
}

function quote(text) {
	return `'${text.replaceAll("'", `'\\''`)}'`
}


function pythonValue(value) {
	if (value instanceof Json) return pythonNode(value.node)
	if (value === null || value === undefined) return "None"
	if (value === true) return "True"
	if (value === false) return "False"
	if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`
	if (typeof value === "object") {
		return `{${Object.entries(value).map(([key, inner]) => `${JSON.stringify(key)}: ${pythonValue(inner)}`).join(", ")}}`
	}
	return JSON.stringify(value)
}

/** A payload in Python, which holds long integers as they are. */
function pythonNode({ source, open, close, entries: inner }) {
	if (source !== undefined) return /^[-0-9]/.test(source) ? source : pythonValue(JSON.parse(source))
	return open + inner.map(([key, node]) => (key === null ? "" : `${key}: `) + pythonNode(node)).join(", ") + close
}

// --- actions

const router = (name, rest = "") => `/v0/routers/${encodeURIComponent(name)}${rest}`
export const schedulePath = (name, rest = "") => `/v0/schedules/${encodeURIComponent(name)}${rest}`
const keyPath = (key, rest = "") => `/v0/keys/${encodeURIComponent(key)}${rest}`
const clean = (fields) => Object.fromEntries(entries(fields))

const LOOP = { python: "for item in CALL:\n        print(item)", javascript: "for await (const item of CALL) console.log(item)" }
const list = (name, path = `/v0/${name}`, args = [], options = {}) => ({ method: "GET", path, name, args, options, ...LOOP })
const consumerPath = (topic, name) => at(topic, `/consumers/${encodeURIComponent(name)}`)

const call = (method, name, path, args, options) => ({ method, path, name, args, ...(options && { body: options, options }) })

export const actions = {
	listTopics: () => list("topics"),
	topic: (topic) => call("GET", "topic", at(topic), [topic]),
	putTopic: (topic, config) => call("PUT", "put_topic", at(topic), [topic], config),
	dropTopic: (topic) => call("DELETE", "drop_topic", at(topic), [topic]),
	append: (topic, { data, ...rest }) => ({ ...call("POST", "append", at(topic), [topic, data], clean(rest)), body: { records: [{ data, ...clean(rest) }] } }),
	read: (topic, options) => call("POST", "diff", at(topic, "/diff"), [topic], clean(options)),
	follow: (topic, options) => ({
		...call("POST", "follow", at(topic, "/diff"), [topic], { ...clean(options), tail: true }), body: { ...clean(options), wait_ms: 20_000 }, ...LOOP,
	}),
	deleteRecords: (topic, which) => call("POST", "delete", at(topic, "/delete"), [topic], which),
	jobs: (topic, state) => list("list_jobs", at(topic, `/jobs${state ? `?state=${state}` : ""}`), [topic], { state }),
	nack: (topic, held) => ({ ...call("POST", "nack", at(topic, "/nack"), [topic], held), positional: ["seqs"] }),
	extend: (topic, held) => call("POST", "extend", at(topic, "/extend"), [topic], held),
	redrive: (topic, which) => call("POST", "redrive", at(topic, "/redrive"), [topic], which),
	routers: () => list("routers"),
	router: (name) => call("GET", "router", router(name), [name]),
	putRouter: (name, config) => call("PUT", "put_router", router(name), [name], config),
	dropRouter: (name) => call("DELETE", "drop_router", router(name), [name]),
	schedules: () => list("schedules"),
	consumers: () => list("consumers"),
	putConsumer: (topic, name, where) => call("PUT", "put_consumer", consumerPath(topic, name), [topic, name], where),
	dropConsumer: (topic, name) => call("DELETE", "drop_consumer", consumerPath(topic, name), [topic, name]),
	createKey: ({ key, ...rights }) => ({ ...call("POST", "create_key", "/v0/keys", [key], rights), body: { key, ...rights } }),
	createToken: (rights) => call("POST", "create_token", "/v0/tokens", [], rights),
	rotateKey: (key) => ({ ...call("POST", "rotate_key", keyPath(key, "/rotate"), [key]), body: {} }),
	dropKey: (key) => call("DELETE", "drop_key", keyPath(key), [key]),
	revokeTokens: (which) => call("POST", "revoke_tokens", "/v0/tokens/revoke", [], which),
	replica: () => call("GET", "replica", "/v0/replica", []),
	promote: (to) => ({ ...call("POST", "promote", "/v0/replica/promote", [to]), body: { to } }),
	sql: (query) => ({ ...call("POST", "sql", "/v0/sql", [query]), body: { query } }),
	metrics: () => call("GET", "metrics", "/v0/metrics", []),
}
