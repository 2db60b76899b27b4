/** Topics, and queues with their jobs by state: live tables with search, and forms that create one. */

import {
	actions, ago, badge, bytes, copyAs, count, createButton, curl, duration, empty, formDialog, h, listAll, noTopics, rate, Rates, session, short, span,
	tablePage, warned, whole,
} from "../parts/kit.js"
import { createTopic } from "./topic-forms.js"

export const title = "Topics"

const QUIET_MS = 10_000 // a topic without a write for so long has no rate

export const topicLink = (name, page = "topics") => `#/${page}/${encodeURIComponent(name)}`

/** A link to the page of a topic. */
export const linkTo = (name, page) => h("a", { href: topicLink(name, page) }, name)

/** How long a topic keeps its records, in a few words. */
export function retention({ ttl_ms, cap_records, cap_bytes, discard }) {
	const parts = []
	if (ttl_ms) parts.push(duration(ttl_ms))
	if (cap_records) parts.push(cap_records < 1000 ? count(cap_records, "record") : `${short(cap_records)} records`)
	if (cap_bytes) parts.push(bytes(cap_bytes))
	if (parts.length === 0) return "everything"
	return parts.join(", ") + (discard === "reject" ? ", then rejects" : "")
}

const COLUMNS = [
	{
		key: "name", label: "Topic", class: "name", sort: (row) => row.topic,
		cell: (row) => [linkTo(row.topic), row.type === "queue" && badge("queue")],
	},
	{ key: "head", label: "Head", class: "number wide", sort: (row) => row.head_seq, print: whole },
	{ key: "count", label: "Records", class: "number", sort: (row) => row.count, print: whole },
	{ key: "bytes", label: "Size", class: "number medium", sort: (row) => row.bytes, print: bytes },
	{ key: "rate", label: "Rate", class: "number", sort: (row) => row.rate ?? 0, cell: (row) => (row.rate === null ? "–" : rate(row.rate)) },
	{ key: "lost", label: "Lost", class: "number medium", sort: (row) => row.lost, print: warned },
	{ key: "durability", label: "Durability", class: "wide", sort: (row) => row.config.durability },
	{ key: "retention", label: "Keeps", class: "broad wide", cell: (row) => retention(row.config) },
	{ key: "write", label: "Last write", class: "number wide", sort: (row) => row.last_write_ts ?? 0, cell: (row) => ago(row.last_write_ts) },
]

/** Ask for a new topic or queue, and go to it. */
function createDialog(type) {
	formDialog(`Create a ${type === "queue" ? "queue" : "topic"}`, (done) => createTopic(done, { type }), ({ topic, config }) => (location.hash = topicLink(topic, config.type === "queue" ? "queues" : "topics")))
}

export function show({ query, signal }) {
	const rates = new Rates()

	async function load() {
		const rows = await listAll("/v0/topics?details=true", "topics", { signal })
		for (const row of rows) row.rate = rates.note(row.topic, row.epoch, row.head_seq) ?? (session.now() - (row.last_write_ts ?? 0) > QUIET_MS ? 0 : null)
		return rows
	}

	return tablePage("Topics", {
		noun: "topic", columns: COLUMNS, sortBy: "name", nameOf: (row) => row.topic, blank: noTopics, load, scopes: "admin", query, signal,
		actions: [copyAs(actions.listTopics), createButton("Create topic", query, () => createDialog("log"))],
	})
}

// --- queues

export const queues = { title: "Queues", show: showQueues }

const IDLE_MS = 15_000

const trouble = (row) => row.queue.dead_letter_error ?? (row.idle && !row.config.paused ? "no worker takes its jobs" : "")
const QUEUE_COLUMNS = [
	{ key: "name", label: "Queue", class: "name", sort: (row) => row.topic, cell: (row) => [linkTo(row.topic, "queues"), row.config.paused && badge("paused", "warn")] },
	{ key: "ready", label: "Ready", class: "number", sort: (row) => row.queue.ready, print: whole },
	{ key: "flight", label: "In flight", class: "number", sort: (row) => row.queue.in_flight, print: whole },
	{ key: "delayed", label: "Delayed", class: "number medium", sort: (row) => row.queue.delayed, print: whole },
	{ key: "dead", label: "Dead", class: "number", sort: (row) => row.queue.dead_lettered, print: warned },
	{ key: "done", label: "Finished", class: "number medium", sort: (row) => row.done ?? 0, cell: (row) => (row.done === null ? "–" : rate(row.done)) },
	{ key: "letters", label: "Dead letters in", class: "wide", cell: (row) => row.config.dead_letter ?? (row.config.max_deliveries ? "nowhere" : "–") },
	{ key: "error", label: "Problem", class: "broad wide", sort: trouble, print: (text) => span("bad", text) },
]

function showQueues({ query, signal }) {
	const rates = new Rates()
	const waiting = new Set()

	async function load() {
		const rows = (await listAll("/v0/topics?details=true", "topics", { signal })).filter((row) => row.queue)
		for (const row of rows) {
			row.done = rates.note(row.topic, row.epoch, row.head_seq - row.count - row.lost)
			const waits = row.queue.ready > 0 && row.queue.in_flight === 0
			row.idle = waits && (row.done === null ? session.now() - (row.last_write_ts ?? 0) > IDLE_MS : waiting.has(row.topic) && row.done === 0)
			waiting[waits ? "add" : "delete"](row.topic)
		}
		return rows
	}

	const blank = () => empty("No queues yet", "A queue is a topic whose records are jobs. This command creates one:",
		curl("/v0/topics/emails", { type: "queue", max_deliveries: 5, dead_letter: "emails.dead" }, "PUT"))
	return tablePage("Queues", {
		noun: "queue", columns: QUEUE_COLUMNS, sortBy: "name", nameOf: (row) => row.topic, blank, load, scopes: "admin", query, signal,
		actions: [createButton("Create queue", query, () => createDialog("queue"))],
	})
}
