/**
 * The same action as `curl`, Python and JavaScript, for the "Copy as" menu.
 *
 * An action is `{method, path, body, name, args, options, positional}`: the HTTP request, and the method of the clients
 * with its arguments. Options are in the names of the API; the JavaScript client spells them in camel case. `positional`
 * names options that the Python client takes by position.
 */

import { Json, encode } from "./exact.js"
import { topicPath as at } from "./session.js"

export function asCurl({ method, path, body }, { key, origin = location.origin } = {}) {
  const parts = ["curl"]
  if (method !== "GET" && !(method === "POST" && body !== undefined)) parts.push(`-X ${method}`)
  parts.push(quote(origin + path))
  if (key) parts.push(`-H "authorization: Bearer $TOPICS_TOKEN"`)
  if (body !== undefined) parts.push("-H 'content-type: application/json'", `-d ${quote(encode(body))}`)
  return parts.join(" \\\n  ").replace("curl \\\n  ", "curl ")
}

export function asPython({ name, args = [], options = {}, positional = [], python }, { key, origin = location.origin } = {}) {
  const token = key ? `, token=os.environ["TOPICS_TOKEN"]` : ""
  const given = [
    ...args.map(pythonValue),
    ...positional.map((option) => pythonValue(options[option])),
    ...entries(options).filter(([option]) => !positional.includes(option)).map(([option, value]) => `${option}=${pythonValue(value)}`),
  ]
  return `${key ? "import os\n" : ""}from topics.client import Topics

with Topics(${pythonValue(origin)}${token}) as topics:
    ${(python ?? "print(CALL)").replace("CALL", () => `topics.${name}(${given.join(", ")})`)}
`
}

export function asJavaScript({ name, args = [], options = {}, javascript }, { key, origin = location.origin } = {}) {
  const token = key ? `, { token: process.env.TOPICS_TOKEN }` : ""
  const fields = entries(options).map(([option, value]) => `${camel(option)}: ${encode(value)}`)
  const given = [...args.map(encode), ...(fields.length ? [`{ ${fields.join(", ")} }`] : [])]
  const call = `topics.${camel(name)}(${given.join(", ")})`
  return `import { Topics } from "${origin}/client.js"

const topics = new Topics("${origin}"${token})
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
const clean = (fields) => Object.fromEntries(entries(fields))

const LOOP = { python: "for item in CALL:\n        print(item)", javascript: "for await (const item of CALL) console.log(item)" }
const list = (name, path = `/v0/${name}`, args = [], options = {}) => ({ method: "GET", path, name, args, options, ...LOOP })
export const consumerPath = (topic, name) => at(topic, `/consumers/${encodeURIComponent(name)}`)

export const actions = {
  listTopics: () => list("topics"),
  topic: (topic) => ({ method: "GET", path: at(topic), name: "topic", args: [topic] }),
  putTopic: (topic, config) => ({ method: "PUT", path: at(topic), body: config, name: "put_topic", args: [topic], options: config }),
  dropTopic: (topic) => ({ method: "DELETE", path: at(topic), name: "drop_topic", args: [topic] }),
  append: (topic, { data, ...rest }) => ({
    method: "POST", path: at(topic), body: { records: [{ data, ...clean(rest) }] }, name: "append", args: [topic, data], options: clean(rest),
  }),
  read: (topic, options) => ({ method: "POST", path: at(topic, "/diff"), body: clean(options), name: "diff", args: [topic], options }),
  follow: (topic, options) => ({
    method: "POST", path: at(topic, "/diff"), body: { ...clean(options), wait_ms: 20_000 }, name: "follow", args: [topic],
    options: { ...clean(options), tail: true }, ...LOOP,
  }),
  deleteRecords: (topic, which) => ({ method: "POST", path: at(topic, "/delete"), body: clean(which), name: "delete", args: [topic], options: which }),
  jobs: (topic, state) => list("list_jobs", at(topic, `/jobs${state ? `?state=${state}` : ""}`), [topic], { state }),
  nack: (topic, held) => ({ method: "POST", path: at(topic, "/nack"), body: held, name: "nack", args: [topic], options: held, positional: ["seqs"] }),
  redrive: (topic, which) => ({ method: "POST", path: at(topic, "/redrive"), body: clean(which), name: "redrive", args: [topic], options: which }),
  routers: () => list("routers"),
  router: (name) => ({ method: "GET", path: router(name), name: "router", args: [name] }),
  putRouter: (name, config) => ({ method: "PUT", path: router(name), body: clean(config), name: "put_router", args: [name], options: config }),
  dropRouter: (name) => ({ method: "DELETE", path: router(name), name: "drop_router", args: [name] }),
  schedules: () => list("schedules"),
  consumers: () => list("consumers"),
  putConsumer: (topic, name, where) => ({ method: "PUT", path: consumerPath(topic, name), body: where, name: "put_consumer", args: [topic, name], options: where }),
  dropConsumer: (topic, name) => ({ method: "DELETE", path: consumerPath(topic, name), name: "drop_consumer", args: [topic, name] }),
  metrics: () => ({ method: "GET", path: "/v0/metrics", name: "metrics" }),
}
