/** Pipelines: the last runs that reported to `sys:pipelines`, with their progress, gaps and errors. */

import {
	actions, ago, badge, bytes, card, copyAs, count, date, duration, empty, entry, h, isBusy, livePage, loading, note, num, pageHead, plainTable, range,
	redraw, session, short, span, swap, swatch,
} from "../parts/kit.js"
import { linkTo } from "./topics.js"

export const title = "Pipelines"

const RUNS = "sys:pipelines"
const READ = 1000 // reports that are looked at
const SHOWN = 20 // runs per pipeline
const KINDS = { done: "good", failed: "bad", stopped: "warn", running: "" }

export function show({ signal }) {
	const place = h("div.stack", loading("Loading runs"))
	let head = -1

	async function refresh() {
		const state = await entry(RUNS, signal)
		if (!state) return swap(place, nothing())
		if (state.head_seq === head || isBusy(place)) return
		head = state.head_seq
		const page = await session.client.diff(RUNS, { fromSeq: Math.max(state.head_seq - READ, 0), limit: READ, signal })
		const runs = new Map()
		for (const { data: { value }, ts } of page.records) if (value?.run_id) runs.set(value.run_id, { ...value, reported: ts })
		const pipelines = new Map()
		for (const run of [...runs.values()].sort((a, b) => b.started_ms - a.started_ms)) {
			if (!pipelines.has(run.pipeline)) pipelines.set(run.pipeline, [])
			pipelines.get(run.pipeline).push(run)
		}
		redraw(place, pipelines.size === 0 ? nothing() : [...pipelines].sort().map(([name, all]) => pipeline(name, all)))
	}

	return livePage(pageHead("Pipelines", { actions: [copyAs(() => actions.read(RUNS, { from_seq: 0, limit: 100 }))] }),
		{ refresh, place, name: RUNS, everyMs: 5000, signal }, place)
}

function nothing() {
	return h("section.card.flush", empty("No pipeline has run yet", "Pipelines report their runs here. This command archives a topic to a directory:",
		`topics pipeline archive --url ${location.origin} --topic orders --lake ./lake`))
}

function pipeline(name, runs) {
	const last = runs[0]
	const lag = last.topics.reduce((sum, row) => sum + (row.lag ?? 0), 0)
	const gaps = last.topics.reduce((sum, row) => sum + (row.gaps?.length ?? 0), 0)
	return card(name, [
		h("p.lead", shown(last),
			` Last run ${ago(last.started_ms)}: ${count(sum(last, "records"), "record")} of ${count(last.topics.length, "topic")}`,
			lag ? span("warn", `, ${short(lag)} behind`) : last.state === "done" ? ", up to date" : "",
			gaps ? span("warn", `, ${count(gaps, "gap")}`) : ""),
		last.error && h("div.failure", h("p", h("strong", last.error.message)), last.next && h("p", last.next)),
		!last.error && last.next && note(last.next),
		(last.warnings ?? []).map((text) => h("p.warn", text)),
		plainTable(`Runs of ${name}`, ["Started", "State", "Took#", "Topics#", "Records#", "Size#", "Behind#", "Gaps#"],
			runs.slice(0, SHOWN).flatMap((run) => [
				[h("td", { title: date(run.started_ms) }, ago(run.started_ms)),
					shown(run),
					num(run.ended_ms ? duration(run.ended_ms - run.started_ms) : "–"),
					num(run.topics.length),
					num(sum(run, "records")),
					num(bytes(sum(run, "size_bytes"))),
					num(short(sum(run, "lag"))),
					num(run.topics.reduce((total, row) => total + (row.gaps?.length ?? 0), 0))],
				run.topics.length > 0 && h("tr.sub", h("td", { colSpan: 8 }, h("details", h("summary", "Topics of this run"), topics(run)))),
			]).filter(Boolean)),
	])
}

function topics(run) {
	return plainTable(`Topics of run ${run.run_id}`, ["Topic", "Seqs#", "Records#", "Behind#", "Gaps"],
		run.topics.map((row) => [
			[linkTo(row.topic), row.into ? ` into ${row.into}` : ""],
			num(row.to_seq ? range(row.from_seq ?? 0, row.to_seq) : "nothing new"),
			num(row.records ?? 0),
			num(row.lag === undefined || row.lag === null ? "–" : short(row.lag)),
			(row.gaps ?? []).map((gap) => h("div", swatch(gap.reason), `${range(gap.from_seq, gap.to_seq)} ${gap.reason}`)),
		]))
}

/** The state of a run as a badge. */
function shown(run) {
	const text = run.state === "done" && !run.ok ? "done, found problems" : run.dry_run ? `${run.state}, dry run` : run.state
	return badge(text, KINDS[run.state] || (run.ok ? "" : "bad"))
}

function sum(run, field) {
	return run.topics.reduce((total, row) => total + (row[field] ?? 0), 0)
}
