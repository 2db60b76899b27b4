/** One topic: its figures, its activity over time and by seq, its records, and its configuration. */

import {
	actions, activity, ago, allowed, badge, button, bytes, card, copyAs, count, curl, duration, entry, formDialog, h, icon, Json, jsonTree, listAll,
	loading, missingNote, pageHead, pageOfOne, poll, problemOf, put, rate, records, select, session, setQuery, short, span, stat, stats, tabs, timeline,
	topicPath, whole,
} from "../parts/kit.js"
import { configureTopic, deleteRecords, dropTopic, explain, writeRecord } from "./topic-forms.js"
import { retention, topicLink } from "./topics.js"

export const title = ({ params }) => params[0]

const VIEWS = [["time", "By time"], ["seq", "By seq"]]
const RATE_MS = 60_000
export const CURRENT_MS = 5000 // a consumer whose oldest unread record is younger keeps up

export function show({ params: [name], query, signal: left }) {
	let state = null
	let view = query.get("view") === "seq" ? "seq" : "time"
	const page = pageOfOne("topic", name, left, curl(topicPath(name), { records: [{ data: { hello: "world" } }] }))
	const { signal, problem, body, gone } = page
	const badges = span("badges")
	const figures = {
		head: stat("Head", "–", { title: "The seq of the last record" }),
		count: stat("Live records"),
		bytes: stat("Size"),
		rate: stat("Rate", "–", { title: "Records written per second, over the last minute" }),
		lost: stat("Lost", "–", { title: "Seqs that a cap, a TTL or damage removed" }),
		deleted: stat("Deleted", "–", { title: "Seqs that a client deleted: readers skip them without a gap" }),
		write: stat("Last write"),
		keeps: stat("Keeps"),
	}
	const settings = h("div.stack")
	const jobs = h("a.button", { href: topicLink(name, "queues"), hidden: true }, "Jobs")
	put(body, loading("Loading"))
	const list = {} // until the topic was found
	const onPick = (seq) => list.jump(seq)
	const views = { time: activity(name, { signal, query, onPick, state: () => state }), seq: timeline(name, { signal, onPick }) }
	const panel = h("div", { role: "tabpanel", id: "activity" })
	const choices = tabs("Activity", VIEWS, panel, (key) => {
		setQuery({ view: key === "time" ? null : key }, { push: true })
		choose(key)
	})
	const again = async () => {
		await refresh()
		list.again()
	}

	function choose(key) {
		view = key
		choices.set(key)
		panel.setAttribute("aria-labelledby", `tab-${key}`)
		put(panel, views[key].element)
		void views[key].refresh().catch(() => {})
	}

	async function refresh() {
		const now = Math.round(session.now())
		const asked = session.get(topicPath(name, "?touch=false"), signal)
		state ??= await asked // the range of the activity follows from the age of the topic
		const [seen, lost, { rows }] = await Promise.all([
			asked, views[view].refresh(),
			session.get(`/v0/samples?topic=${encodeURIComponent(name)}&from_ts=${now - RATE_MS}&to_ts=${now}&points=1`, signal),
		])
		state = seen
		jobs.hidden = seen.type !== "queue"
		put(problem)
		put(badges, badge(seen.type), badge(seen.config.durability))
		figures.head.set(whole(seen.head_seq))
		figures.count.set(whole(seen.count))
		figures.bytes.set(bytes(seen.bytes))
		figures.rate.set(rate(Math.max(rows[1][1] - rows[0][1], 0) / (Math.min(RATE_MS, Math.max(now - seen.epoch, 1000)) / 1000)))
		figures.lost.set(short(lost.lost), "", lost.lost ? "warn" : "")
		figures.deleted.set(short(lost.deleted))
		figures.write.set(ago(seen.last_write_ts))
		figures.keeps.set(retention(seen.config))
		choices.count("seq", lost.lost, "warn")
		describe(settings, seen)
		list.refresh()
	}

	async function mark() {
		const [routers, consumers] = await Promise.all([
			listAll(`/v0/routers?source=${encodeURIComponent(name)}`, "routers", { signal, most: 200 }),
			listAll(topicPath(name, "/consumers"), "consumers", { signal, most: 200 }),
		])
		const labelled = (label, lag) => (lag ? `${label}, ${short(lag)} behind` : label)
		const marks = [
			...routers.map(({ router, cursor, dest, lag }) => ({
				seq: cursor, name: router, lag, label: labelled(router, lag), above: true, kind: "router",
				detail: `router to ${dest}, ${count(lag, "record")} behind`,
			})),
			...consumers.map(({ seq, consumer, lag_records, lag_ms, lost }) => ({
				seq, name: consumer, lag: lag_ms < CURRENT_MS ? 0 : lag_records, label: labelled(consumer, lag_records), kind: "consumer",
				detail: `consumer, ${count(lag_records, "record")} behind${lag_ms ? `, the oldest for ${duration(lag_ms)}` : ""}${lost ? `; ${count(lost.records, "record")} lost before it was read` : ""}`,
			})),
		]
		views.time.mark(marks.map((one) => ({ ...one, above: false })))
		views.seq.mark(marks)
	}

	const open = (heading, make) => () => state && formDialog(heading, (done) => make(state, done), again)
	const head = page.head = pageHead(name, {
		crumbs: [["Topics", "#/topics"]], badges: [badges],
		actions: [
			copyAs(() => actions.topic(name)),
			jobs,
			allowed("admin", name, () => button([icon("settings"), "Configure"], open("Configure the topic", configureTopic))),
			allowed("delete", name, () => button("Delete records", () => state && deleteRecords(state, again))),
			allowed("delete", name, () => button("Delete topic", () => state && formDialog("Delete the topic", (done) => dropTopic(state, done), () => {
				page.end.abort()
				location.hash = "#/topics"
			}), { kind: "danger" })),
			allowed("write", name, () => button([icon("plus"), "Write record"], open("Write a record", writeRecord), { kind: "primary" })),
		],
	})

	async function begin() {
		if (!(await entry(name, signal))) throw problemOf(name, "topic_not_found")
		Object.assign(list, records(name, { signal, query, state: () => state }))
		put(body,
			stats(...Object.values(figures)),
			h("section.card", choices.element, panel),
			card("Records", list.element),
			card("Configuration", settings))
		choices.set(view)
		put(panel, views[view].element)
		head.classList.remove("waiting")
	}

	const refused = missingNote("read", name)
	head.classList.toggle("waiting", !refused)
	if (refused) put(body)
	else {
		poll(async () => {
			if (!list.element) await begin()
			await Promise.all([refresh(), mark()])
		}, { everyMs: 3000, signal, onError: gone })
	}
	return [head, refused ?? missingNote("write delete admin", name), problem, body]
}

/** The versions of the schema, the last one first. */
function schemas({ schema, schema_versions: versions = [] }) {
	if (versions.length === 0) return null
	const place = h("div")
	const show = () => put(place, jsonTree(Json.parse(JSON.stringify(versions[chosen.value]))))
	const chosen = select(versions.map((_, at) => [at, `Schema, version ${at + 1}${schema && at === versions.length - 1 ? "" : ", not in use"}`]).reverse(), versions.length - 1, { "aria-label": "Version of the schema", on: { change: show } })
	show()
	return h("div", h("div.filters", chosen), place)
}

function describe(place, state) {
	const rows = explain(state)
	const text = JSON.stringify([rows, state.config.schema_versions])
	if (place.dataset.shown === text) return
	place.dataset.shown = text
	put(place, h("dl.settings", rows.map(([label, value, standard]) => h("div", h("dt", label), h("dd", { class: standard ? "faint" : "" }, value)))), schemas(state.config))
}
