/** Consumers: their lag in records and time, the time to catch up, and what they missed. */

import {
	actions, ago, allowed, ask, badge, button, card, copyAs, count, curl, dialog, duration, empty, fact, field, form, formDialog, h, input, listAll,
	num, parseTime, plainTable, plot, problemOf, put, range, Readers, readReaders, session, short, span, STATES, swatch, tablePage, warned, whole,
} from "../parts/kit.js"
import { CURRENT_MS } from "./topic.js"
import { linkTo, topicLink } from "./topics.js"

export const title = "Consumers"

const COLORS = ["c1", "c2", "live", "restart", "ttl"]
const JOIN_MS = 45_000
const STILL = 0.05 // records per second: slower changes of the lag are not shown as a trend

export function show({ query, signal }) {
	const readers = new Readers()
	const worst = plot("Records behind, the five worst", { format: short, gapMs: JOIN_MS })
	const picture = card("Lag, last hour", worst.element)
	picture.hidden = true
	let all = []

	async function load() {
		const [rows] = await Promise.all([listAll("/v0/consumers", "consumers", { signal }), readReaders(readers, signal)])
		for (const row of rows) {
			row.key = `consumer ${row.topic} ${row.consumer}`
			readers.note(row.key, session.now(), row.lag_records, row.seq)
			row.points = readers.of(row.key)
			row.trend = readers.trend(row.key)
		}
		picture.hidden = rows.length === 0
		drawWorst([...rows].sort((a, b) => b.lag_records - a.lag_records).slice(0, COLORS.length))
		return (all = rows)
	}

	function drawWorst(rows) {
		const times = [...new Set(rows.flatMap((row) => row.points.map((point) => point.ts)))].sort((a, b) => a - b)
		worst.set(times, rows.map((row, at) => ({ name: `${row.consumer} on ${row.topic}`, color: COLORS[at], values: valuesAt(row.points, times) })))
	}

	const blank = () => empty("No named consumers yet", "A named consumer keeps its position on the server. This command reads as one, and a second call commits what the first one returned:",
		curl("/v0/topics/orders/diff", { consumer: "billing", commit: true }))
	return tablePage("Consumers", {
		noun: "consumer", columns: (again) => columns(again, (key) => all.find((row) => row.key === key)), sortBy: "-lag", scopes: "write delete",
		nameOf: (row) => `${row.consumer} ${row.topic}`, rowKey: (row) => row.key, blank, load, query, signal, actions: [copyAs(actions.consumers)], above: picture,
	})
}

/** The lag at each of the times: the last one that was seen; null before the first. */
function valuesAt(points, times) {
	let at = 0
	return times.map((ts) => {
		while (at < points.length && points[at].ts <= ts) at++
		return at ? points[at - 1].lag : null
	})
}

/** When a consumer will have caught up, as words and as a number to sort by. */
function catchUp({ lag_records: lag, lag_ms: ms, trend }) {
	if (!lag || ms < CURRENT_MS) return ["up to date", 0, "faint"]
	if (trend === null) return ["–", Infinity, "faint"]
	if (trend.lag < -STILL) return [`in about ${roughly(duration(Math.round(lag / -trend.lag) * 1000))}`, lag / -trend.lag, ""]
	if (trend.done <= STILL) return ["does not read", Infinity, "bad"]
	return [trend.lag > STILL ? `falls behind ${short(trend.lag)}/s` : "keeps its lag", Infinity, "warn"]
}

/** A duration with one unit. */
const roughly = (text) => text.split(" ").slice(0, 2).join(" ")

/** Who has read or committed last. */
const who = ({ last_read: one }) => (one ? `${ago(one.at_ms)} by ${[one.key, one.address, one.client].filter(Boolean).join(", ")}` : "by nobody since the server started")

function columns(again, find) {
	const open = (row) => () => dialog(row.consumer, (close) => details(find(row.key) ?? row, close, again)) // the cell may be older
	return [
		{ key: "consumer", label: "Consumer", class: "name", sort: (row) => row.consumer, cell: (row) => [button(row.consumer, open(row), { kind: "link plain", title: "Show everything about it, move or delete it" }), row.hold && badge("holds records")] },
		{ key: "topic", label: "Topic", sort: (row) => row.topic, print: (topic) => linkTo(topic) },
		{ key: "seq", label: "Position", class: "number broad wide", sort: (row) => row.seq, cell: (row) => h("a", { href: `${topicLink(row.topic)}?at=${row.seq + 1}` }, `${whole(row.seq)} of ${whole(row.head_seq)}`) },
		{ key: "lag", label: "Behind", class: "number", sort: (row) => row.lag_records, print: warned },
		{ key: "time", label: "For", class: "number medium", sort: (row) => row.lag_ms, cell: (row) => (row.lag_ms ? duration(row.lag_ms) : "–") },
		{
			key: "eta", label: "Caught up", class: "broad medium", sort: (row) => catchUp(row)[1],
			cell: (row) => {
				const [text, , kind] = catchUp(row)
				return span(kind, text)
			},
		},
		{
			key: "lost", label: "Missed", class: "number medium", sort: (row) => row.lost?.records ?? 0,
			cell: (row) => (row.lost ? button(short(row.lost.records), open(row), { kind: "link warn", "aria-label": `Show the ${whole(row.lost.records)} records that ${row.consumer} missed` }) : warned(0)),
		},
		{ key: "read", label: "Read last", class: "number wide", sort: (row) => row.last_read?.at_ms ?? 0, cell: (row) => (row.last_read ? ago(row.last_read.at_ms).replace(/^(\S+ \S+) .* ago$/, "$1 ago") : "–") },
	]
}

/** Everything about a consumer, and what can be done with it. */
function details(row, close, again) {
	const act = (open) => () => {
		close()
		open()
	}
	return [
		h("dl.facts",
			fact("Topic", h("a", { href: topicLink(row.topic), on: { click: close } }, row.topic)), fact("Position", `${whole(row.seq)} of ${whole(row.head_seq)}`),
			fact("Behind", `${count(row.lag_records, "record")}${row.lag_ms ? `, the oldest for ${duration(row.lag_ms)}` : ""}`), fact("Caught up", catchUp(row)[0]),
			fact("Missed", row.lost ? count(row.lost.records, "record") : "nothing"), fact("Last commit", ago(row.updated_ms)),
			fact("Read last", who(row)), row.meta && fact("Stored with it", h("code", JSON.stringify(row.meta))), row.hold && fact("Holds records", "caps evict no record that it has not read")),
		row.lost && plainTable("Missed ranges", ["First missed#", "Last missed#", "Records#", "Why"], row.lost.gaps.map(({ gap_from: from, gap_to: to, reason }) => [
			num(from), num(to), num(to - from + 1), [swatch(reason), STATES[reason] ?? reason],
		])),
		h("p.toolbar.dialog-actions",
			h("a.button.small", { href: `${topicLink(row.topic)}?at=${row.seq + 1}`, on: { click: close } }, "Show its next record"),
			row.lost && h("a.button.small", { href: `${topicLink(row.topic)}?view=seq`, on: { click: close } }, "Show the timeline"),
			allowed("write", row.topic, () => button("Seek", act(() => formDialog("Move the consumer", (done) => seek(row, done), again)), { kind: "small" })),
			allowed("delete", row.topic, () => button("Delete", act(() => drop(row, again)), { kind: "small danger" }))),
	]
}

/** A form that moves a consumer: to an end of the topic, to a seq, or to a time. */
function seek({ topic, consumer, seq, head_seq: head }, done) {
	const to = input({ name: "to", required: true, placeholder: "start, head, 120, 14:05, 10m ago" })
	const answer = h("p.note", { role: "status" })
	let wanted = null // the last seq that it has read then

	async function find() {
		const text = to.value.trim()
		const ts = parseTime(text, session.now())
		if (text === "start") wanted = 0
		else if (text === "head") wanted = head
		else if (/^\d+$/.test(text)) wanted = Math.min(Math.max(Number(text) - 1, 0), head)
		else {
			const found = ts === null ? null : await session.client.diff(topic, { fromSeq: 0, fromTs: Math.round(ts), limit: 1 })
			wanted = found && (found.records.length ? found.records[0].seq - 1 : head)
		}
		put(answer, wanted === null ? "" : wanted === seq ? "It is there already."
			: wanted < seq ? `Seqs ${range(wanted + 1, seq)} would be read again, as far as they are stored.` : `Seqs ${range(seq + 1, wanted)} would be skipped.`)
	}

	to.addEventListener("input", () => void find().catch((error) => put(answer, error.message)))
	const action = () => actions.putConsumer(topic, consumer, { seq: wanted, if_seq: seq })
	return form([
		h("p", h("code", consumer), " on ", h("code", topic), ` is at seq ${whole(seq)} of ${whole(head)}.`),
		field("Move it to", to, "start, head, the next seq that it reads, or a time."), answer,
	], {
		label: "Move consumer", action,
		submit: async () => {
			await find()
			if (wanted === null) throw problemOf(`"${to.value}" is neither start, head, a seq nor a time`)
			await session.run(action())
			return [`Moved ${consumer} to seq ${whole(wanted)}.`]
		},
		done,
	})
}

function drop({ consumer, topic }, again) {
	ask("Delete the consumer", ["The position of ", h("code", consumer), " on ", h("code", topic), " is forgotten, and records that it holds may be evicted. A reader with this name begins again."], {
		label: "Delete consumer", action: () => actions.dropConsumer(topic, consumer), said: `Deleted ${consumer}.`,
	}, again)
}
