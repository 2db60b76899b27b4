/** The connection to the server. The key lives in session storage of this tab and is sent in a header only, never in a URL. */

import { Topics, TopicsError, Unreachable } from "/client.js"
import { encode, parseAnswer } from "./exact.js"
import { ahead } from "./format.js"

const KEY = "topics-console-key"
const BACKOFF_MS = [1000, 2000, 5000]
const CLOCK_SLACK_MS = 3000 // the server states its time in whole seconds

class Session extends EventTarget {
	key = sessionStorage.getItem(KEY)
	/** What the server says about the key: `{key, scopes, prefixes}`; null until it has answered. */
	who = null
	version = ""
	online = true
	#client = null

	/** The client of this session. It does not retry: pages poll, and show errors of other requests at once. */
	get client() {
		this.#client ??= new Topics(location.origin, { token: this.key, retries: 0, parse: parseAnswer, fetch: (...args) => this.#fetch(...args) })
		return this.#client
	}

	/** Ask the server what this session may do. Throw `Unauthorized` if it needs another key. */
	async open() {
		this.who = await this.get("/v0/whoami")
		this.version = (await this.get("/v0/health")).version
		this.#notify("changed")
	}

	/** Use another key; null for none. */
	signIn(key) {
		this.key = key
		this.#client = null
		this.who = null
		if (key) sessionStorage.setItem(KEY, key)
		else sessionStorage.removeItem(KEY)
	}

	/** The time of the server, in ms since 1970. */
	now() {
		return Date.now() + ahead.ms
	}

	/** Return whether the key has the scopes, and covers the name. */
	can(scopes, name = null) {
		if (!this.who) return false
		return this.missing(scopes).length === 0 && (name === null || this.covers(name))
	}

	/** Return the scopes of a list that the key does not have. */
	missing(scopes) {
		return scopes.split(" ").filter((scope) => !this.who?.scopes.includes(scope))
	}

	/** Return whether the prefixes of the key cover a name. */
	covers(name) {
		const prefixes = this.who?.prefixes ?? []
		return prefixes.length === 0 || prefixes.some((prefix) => name.startsWith(prefix))
	}

	get(path, signal) {
		return this.request("GET", path, undefined, { signal })
	}

	/** Send a request that the client has no method for. Return the JSON answer; payloads in it and in the body are `Json`. */
	async request(method, path, body, { signal } = {}) {
		const headers = new Headers({ accept: "application/json" })
		if (body !== undefined) headers.set("content-type", "application/json")
		if (this.key) headers.set("authorization", `Bearer ${this.key}`) // throws if no header can hold the key
		const text = body === undefined ? undefined : encode(body)
		let response
		try {
			response = await this.#fetch(path, { method, headers, signal, cache: "no-store", body: text })
		} catch (cause) {
			if (signal?.aborted) throw cause
			throw new Unreachable("the server does not answer", { code: "unreachable", retryable: true, cause })
		}
		const answer = await response.text().then(parseAnswer).catch((error) => (response.ok ? Promise.reject(error) : {}))
		if (response.ok) return answer
		const { code = `http_${response.status}`, message = `HTTP ${response.status}`, detail = null } = answer.error ?? {}
		throw new TopicsError(message, { code, status: response.status, detail, retryable: response.status === 503 })
	}

	/** Send the request of an action of `snippets.js`. */
	run({ method, path, body }) {
		return this.request(method, path, body)
	}

	async #fetch(...args) {
		try {
			const response = await fetch(...args)
			this.#reached(true)
			const aheadMs = Date.parse(response.headers.get("date") ?? "") - Date.now()
			ahead.ms = Math.abs(aheadMs) > CLOCK_SLACK_MS ? aheadMs : 0
			if (response.status === 401) this.#notify("unauthorized")
			return response
		} catch (error) {
			if (!args[1]?.signal?.aborted) this.#reached(false)
			throw error
		}
	}

	#reached(online) {
		if (this.online === online) return
		this.online = online
		this.#notify("connection")
	}

	#notify(what) {
		this.dispatchEvent(new Event(what))
	}
}

export const session = new Session()

/** Call `work` now and `everyMs` after it has ended. A hidden page does not poll. Without an answer polls become rarer; other errors go to `onError`. */
export async function poll(work, options) {
	const { signal, onError = () => {} } = options
	let failures = 0
	while (!signal.aborted) {
		let waitMs
		try {
			await work()
			failures = 0
			waitMs = options.everyMs // read each time: `work` may change it
		} catch (error) {
			if (signal.aborted) return
			waitMs = BACKOFF_MS[Math.min(failures++, BACKOFF_MS.length - 1)]
			if (!(error instanceof Unreachable) && (error?.status !== 503 || error.code === "fenced")) {
				waitMs = Math.max(waitMs, options.everyMs)
				onError(error)
			}
		}
		await pause(waitMs, signal)
	}
}

/** Wait, and for the page to be visible. */
function pause(ms, signal) {
	return new Promise((resolve) => {
		const end = () => {
			clearTimeout(timer)
			document.removeEventListener("visibilitychange", shown)
			signal.removeEventListener("abort", end)
			resolve()
		}
		const shown = () => document.hidden || (elapsed && end())
		let elapsed = false
		const timer = setTimeout(() => {
			elapsed = true
			shown()
		}, ms)
		document.addEventListener("visibilitychange", shown)
		signal.addEventListener("abort", end)
	})
}

/** The path of a topic, or of something under it. */
export function topicPath(topic, rest = "") {
	return `/v0/topics/${encodeURIComponent(topic)}${rest}`
}

/** The entry of a topic in the list, undefined if there is none: the log of the browser then has no error. */
export async function entry(topic, signal) {
	if (topic[0] === "$") return session.get(topicPath(topic, "?touch=false"), signal) // not listed
	const { topics: [found] } = await session.get(`/v0/topics?prefix=${encodeURIComponent(topic)}&page_size=1`, signal)
	return found?.topic === topic ? found : undefined
}

/** List everything of a paged endpoint. */
export async function listAll(path, field, { signal, most = Infinity } = {}) {
	const rows = []
	let cursor = null
	do {
		const joint = path.includes("?") ? "&" : "?"
		const page = await session.get(`${path}${joint}page_size=1000${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`, signal)
		rows.push(...page[field])
		cursor = page.next_cursor
	} while (cursor && rows.length < most)
	return rows
}

// --- the address of what a page shows: a link shows the same, and Back returns to what was shown before

/** The query of the present address. */
export function query() {
	return new URLSearchParams(location.hash.split("?")[1] ?? "")
}

/** Change parts of the query; null or "" removes one. With `push`, Back returns to the address before. */
export function setQuery(changes, { push = false } = {}) {
	const [path] = (location.hash || "#/").split("?")
	const next = query()
	for (const [name, value] of Object.entries(changes)) {
		if (value === null || value === undefined || value === "") next.delete(name)
		else next.set(name, String(value))
	}
	const text = next.toString()
	const hash = text ? `${path}?${text}` : path
	if (hash === (location.hash || "#/")) return
	if (push) history.pushState(null, "", hash)
	else history.replaceState(null, "", hash)
}

/** Call `work` once the calls have stopped for a moment. */
export function debounce(work, ms = 250) {
	let timer = 0
	return (...args) => {
		clearTimeout(timer)
		timer = setTimeout(() => work(...args), ms)
	}
}
