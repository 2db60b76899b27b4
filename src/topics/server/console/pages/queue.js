/** One queue: its jobs by state with their holders and deadlines, its dead letters, and plots of the last hour. */

import {
	actions, ago, alarm, allowed, attempt, badge, button, card, code, copyAs, count, curl, date, duration, empty, entry, failure, formDialog, h, icon,
	isBusy, jsonFold, loading, missingNote, note, num, pageHead, pageOfOne, plainTable, plot, plotGrid, poll, problemOf, put, rate, Rates, redraw, Ring,
	session, setQuery, setText, short, span, stat, stats, tabs, topicPath, whole,
} from "../parts/kit.js"
import { deadLetters } from "./dead-letters.js"
import { configureTopic, writeRecord } from "./topic-forms.js"
import { topicLink } from "./topics.js"

export const title = ({ params }) => params[0]

const TABS = [["in_flight", "In flight"], ["ready", "Ready"], ["delayed", "Delayed"], ["dead", "Dead letters"]]
const PAGE = 50
const IDLE_MS = 15_000 // a ready job that waits for longer, while no worker holds one, is reported
const JOIN_MS = 45_000 // joins samples that the server takes every 15 seconds

export function show({ params: [name], query, signal: left }) {
	let state = null
	let tab = TABS.some(([key]) => key === query.get("tab")) ? query.get("tab") : null // null: the first one with jobs
	const page = pageOfOne("queue", name, left, curl(topicPath(name), { type: "queue", max_deliveries: 5, dead_letter: `${name}.dead` }, "PUT"))
	const { signal, problem, body, gone } = page
	const ring = new Ring()
	const rates = new Rates()
	const figures = {
		ready: stat("Ready"), flight: stat("In flight"), delayed: stat("Delayed"), dead: stat("Dead-lettered"),
		done: stat("Finished", "–", { title: "Jobs that were completed or dead-lettered, per second" }),
		age: stat("Oldest ready job"), wait: stat("Expected wait", "–", { title: "Ready jobs divided by the jobs finished per second" }),
	}
	const plots = {
		backlog: plot("Jobs", { format: short, gapMs: JOIN_MS }),
		done: plot("Finished", { format: rate, gapMs: JOIN_MS }),
		wait: plot("Waiting time", { format: duration, gapMs: JOIN_MS }),
	}
	const unsampled = note("The plots begin now. The server samples up to 64 queues every 15 seconds, and keeps an hour.")
	const list = h("div", { role: "tabpanel", id: "jobs", tabIndex: 0, "aria-label": "Jobs" })
	const choices = tabs("Jobs by state", TABS, list, (key) => {
		setQuery({ tab: key, filter: null, group: null, value: null }, { push: true })
		choose(key)
		void jobs().catch((error) => put(problem, failure(error)))
	})
	let dead = null

	function choose(key) {
		tab = key
		choices.set(key)
		dead = null
		put(list, loading("Loading"))
	}

	async function refresh() {
		const [seen, oldest] = await Promise.all([
			session.get(topicPath(name, "?touch=false"), signal),
			session.get(topicPath(name, "/jobs?state=ready&page_size=1"), signal),
		])
		const finished = rates.note(name, seen.epoch, seen.head_seq - seen.count - (seen.lost ?? 0))
		await sample()
		const done = finished ?? ring.perSecond("finished").at(-1) ?? 0
		state = seen
		const { ready, in_flight, delayed, blocked, dead_lettered, dead_letter_error } = seen.queue
		const { paused, max_in_flight: most, rate: limit, rate_per_key: perKey } = seen.config
		const age = oldest.jobs.length ? Math.max(session.now() - oldest.jobs[0].$ts, 0) : 0
		const wait = done > 0 ? (ready / done) * 1000 : 0
		put(problem, dead_letter_error && alarm(`Jobs cannot move to the dead-letter topic: ${dead_letter_error}`),
			paused ? alarm(h("strong", "The queue is paused."), " Workers get no jobs.")
				: ready > 0 && in_flight === 0 && done === 0 && age > IDLE_MS && noWorker(name, ready, age))
		put(pause, paused ? "Resume" : "Pause")
		figures.ready.set(whole(ready), blocked ? `${whole(blocked)} wait for their key` : "")
		figures.flight.set(whole(in_flight), most ? `at most ${whole(most)}` : "")
		figures.delayed.set(whole(delayed))
		figures.dead.set(whole(dead_lettered), seen.config.dead_letter ? `into ${seen.config.dead_letter}` : "", dead_lettered ? "warn" : "")
		figures.done.set(rate(done), [limit && `at most ${rate(limit.per_s)}`, perKey && `${rate(perKey.per_s)} per key`].filter(Boolean).join(", "))
		figures.age.set(oldest.jobs.length ? duration(age) : "none")
		figures.wait.set(done > 0 ? duration(wait) : "–")
		choices.count("in_flight", in_flight)
		choices.count("ready", ready)
		choices.count("delayed", delayed)
		choices.count("dead", dead?.size() ?? dead_lettered, "warn")
		if (tab === null) choose(in_flight ? "in_flight" : ready ? "ready" : dead_lettered ? "dead" : "in_flight")
		draw(ring, plots, { ready, in_flight, done, age })
		await jobs()
	}

	/** Get new samples, if there can be some. */
	async function sample() {
		if (session.now() < ring.last + ring.intervalMs) return
		ring.add(await session.get(`/v0/samples?queue=${encodeURIComponent(name)}&after=${ring.last}`, signal))
		unsampled.hidden = ring.rows.length > 0
	}

	async function jobs() {
		if (!state) return
		const asked = tab
		if (asked === "dead") {
			if (!dead) {
				dead = deadLetters({ signal, state: () => state, again: refresh })
				put(list, dead.element)
			}
			return dead.refresh()
		}
		if (isBusy(list)) return
		const content = await listed(state, asked, { signal, again: refresh })
		if (asked === tab) redraw(list, content)
	}

	const counting = setInterval(() => {
		for (const cell of list.querySelectorAll("[data-deadline]")) setText(cell, remaining(Number(cell.dataset.deadline)))
	}, 500)
	signal.addEventListener("abort", () => clearInterval(counting))
	const pause = button("Pause", () => state && attempt(() => session.run(actions.putTopic(name, { paused: !state.config.paused })), ({ config }) => (config.paused ? "Workers get no jobs." : "Workers get jobs again."), refresh))
	const open = (heading, make) => () => state && formDialog(heading, (done) => make(state, done), refresh)
	const head = page.head = pageHead(name, {
		crumbs: [["Queues", "#/queues"]], badges: [badge("queue")],
		actions: [
			h("a.button", { href: topicLink(name) }, "Records and timeline"),
			copyAs(() => actions.jobs(name, tab === "dead" ? null : tab)),
			allowed("admin", name, () => pause),
			allowed("admin", name, () => button([icon("settings"), "Configure"], open("Configure the queue", configureTopic))),
			allowed("write", name, () => button([icon("plus"), "Add job"], open("Add a job", writeRecord), { kind: "primary" })),
		],
	})
	put(body,
		stats(...Object.values(figures)),
		card("Last hour", [unsampled, plotGrid(plots)]),
		h("section.card", choices.element, list))

	const refused = missingNote("read", name)
	if (!refused) {
		if (tab) choose(tab)
		poll(async () => {
			if (!state && (await entry(name, signal))?.type !== "queue") throw problemOf(name, "topic_not_found")
			await refresh()
		}, { everyMs: 2000, signal, onError: gone })
	}
	return [head, refused ?? missingNote("write delete admin", name), problem, !refused && body]
}

function noWorker(name, ready, age) {
	return alarm(
		h("p", h("strong", `${ready === 1 ? "1 job waits" : `${whole(ready)} jobs wait`}, and no worker takes ${ready === 1 ? "it" : "them"}.`), ` The oldest waits for ${duration(Math.floor(age / 1000) * 1000)}. Start a worker, or claim a job by hand:`),
		code(curl(topicPath(name, "/claim"), { node: "me" })))
}

/** Draw the samples, and behind them what the page sees now. */
function draw(ring, plots, now) {
	const times = [...ring.column("ts"), session.now()]
	const ready = [...ring.column("ready"), now.ready]
	const done = [...ring.perSecond("finished"), now.done]
	const line = (label, color, values, area = false) => ({ name: label, color, values, area })
	plots.backlog.set(times, [line("ready", "c1", ready), line("in flight", "c2", [...ring.column("in_flight"), now.in_flight])])
	plots.done.set(times, [line("finished", "c1", done, true)])
	plots.wait.set(times, [
		line("oldest job", "c1", [...ring.column("age_ms"), now.age]),
		line("expected", "c2", ready.map((count, at) => (done[at] > 0 ? (count / done[at]) * 1000 : count > 0 ? null : 0))),
	])
}

function remaining(deadline) {
	const left = deadline - session.now()
	return left <= 0 ? "ended" : duration(left < 60_000 ? Math.ceil(left / 1000) * 1000 : left)
}

/** A table of the jobs in one state. */
async function listed(state, kind, { signal, again }) {
	const name = state.topic
	const page = await session.get(topicPath(name, `/jobs?state=${kind}&page_size=${PAGE}`), signal)
	if (page.jobs.length === 0) return empty(EMPTY[kind][0], EMPTY[kind][1], kind === "ready" ? curl(topicPath(name), { records: [{ data: { to: "ada@example.com" } }] }) : null)
	const held = kind === "in_flight"
	const mayWrite = session.can("write", name)
	const [prior, keyed, moves, failed] = ["priority", "$key", "progress", "reasons"].map((name) => page.jobs.some((job) => job[name]))
	const rows = page.jobs.map((job) => {
		const lease = { node: job.node, seqs: [job.$seq], lease_ids: [job.lease_id] }
		return [
			num(job.$seq),
			num(job.deliveries, state.config.max_deliveries ? span("faint", ` of ${whole(state.config.max_deliveries)}`) : ""),
			prior && num(job.priority),
			h("td", { title: date(job.$ts) }, ago(job.$ts)),
			held && h("td", { title: job.node }, job.node),
			held && h("td.number", { "data-deadline": job.deadline }, remaining(job.deadline)),
			kind === "delayed" && h("td", { title: date(job.deliver_at ?? 0), class: "number", "data-deadline": job.deliver_at ?? 0 }, remaining(job.deliver_at ?? 0)),
			job.$tag ?? "–",
			keyed && [job.$key ?? "–", job.blocked && span("faint", " waits")],
			moves && h("td.state", { title: job.progress?.text }, job.progress ? [h("progress", { value: job.progress.share, "aria-label": `Progress of job ${job.$seq}` }), ` ${Math.round(job.progress.share * 100)} % ${job.progress.text ?? ""}`] : "–"),
			failed && h("td.state.bad", { title: (job.reasons ?? []).map((one) => `${date(one.at)}, ${one.node}: ${one.reason}`).join("\n") }, job.reasons?.at(-1).reason.split("\n")[0] ?? "–"),
			h("td.data", jsonFold(job.data)),
			held && h("td.row-actions",
				mayWrite && button("Return", () => attempt(() => session.run(actions.nack(name, lease)), leased("nacked", `Returned job ${whole(job.$seq)} to the queue.`), again), { kind: "small", title: "nack: the job can be claimed again at once" }),
				mayWrite && button("Extend", () => attempt(() => session.run(actions.extend(name, { ...lease, lease_ms: state.config.lease_ms })), leased("extended", `Job ${whole(job.$seq)} is held for ${duration(state.config.lease_ms)} more.`), again), { kind: "small", title: "extend: the worker keeps the job for another lease" }),
				copyAs(() => actions.nack(name, lease))),
		]
	})
	const heads = ["Seq#", "Deliveries#", prior && "Priority#", "Added", held && "Holder", held && "Deadline#", kind === "delayed" && "Due in#", "Tag", keyed && "Key", moves && "Progress", failed && "Last reason", "Data", held && "Actions"].filter(Boolean)
	return [
		plainTable("Jobs", heads, rows, "jobs"),
		page.next_cursor && note(`The first ${PAGE} of ${count(page[kind], "job")}, in the order of the log.`),
	]
}

const EMPTY = {
	in_flight: ["No job is in flight", "A worker that claims a job holds it until its deadline."],
	ready: ["No job is ready", "This command adds one:"],
	delayed: ["No job is delayed", "A job with delay_ms or deliver_at waits here, and so does a job that was returned with a delay."],
}

/** What to say of an answer that is empty if the lease had ended. */
const leased = (field, text) => (answer) => (answer[field] ? text : ["The lease had ended: nothing was changed.", "bad"])
