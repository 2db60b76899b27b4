/** Schedules: their last and next runs, and why ticks fail; run, pause or preview one. */

import {
	actions, ago, allowed, attempt, badge, button, copyAs, count, curl, date, dialog, duration, empty, failure, h, isBusy, listAll, livePage, liveText,
	loading, num, pageHead, plainTable, put, redraw, schedulePath, session, span,
} from "../parts/kit.js"
import { linkTo, topicLink } from "./topics.js"

export const title = "Schedules"

export function show({ signal }) {
	const summary = liveText()
	const place = h("div", loading("Loading schedules"))

	async function refresh() {
		const rows = await listAll("/v0/schedules", "schedules", { signal })
		put(summary, count(rows.length, "schedule"))
		if (isBusy(place)) return
		redraw(place, rows.length ? plainTable("Schedules", HEADS, rows.map((row) => line(row, refresh)), "jobs")
			: empty("No schedules yet", "A schedule appends a record at certain times. This command creates one:",
				curl("/v0/schedules/nightly", { topic: "jobs", record: { data: { do: "report" } }, cron: "30 2 * * *", timezone: "Europe/Berlin" }, "PUT")))
	}

	return livePage(pageHead("Schedules", { actions: [copyAs(actions.schedules)] }), { refresh, place, signal, scopes: "write admin" },
		h("div.toolbar", summary), h("section.card", place))
}

const HEADS = ["Schedule", "Topic", "When", "Last run", "Next run", "State", "Actions"]

function line(row, again) {
	const { schedule: name, topic, last_at: last, next_at: next, last_error: error, skipped_total: skipped } = row
	const pause = () => session.request("POST", schedulePath(name, "/pause"), { paused: !row.paused })
	const run = () => session.request("POST", schedulePath(name, "/run"))
	return [
		name, linkTo(topic),
		[row.cron ?? `every ${duration(row.every_ms)}`, row.timezone !== "UTC" && span("faint", ` ${row.timezone}`)],
		h("td", { title: last ? date(last) : null }, last ? h("a", { href: `${topicLink(topic)}?at=${row.last_seq}` }, ago(last)) : "never"),
		h("td", { title: next ? date(next) : null }, next ? `in ${duration(Math.max(Math.ceil((next - session.now()) / 1000), 1) * 1000)}` : "–"),
		[error ? span("bad", error) : row.paused ? badge("paused", "warn") : next ? "on time" : "over", skipped > 0 && span("faint", `, ${count(skipped, "tick")} skipped`)],
		h("td.row-actions",
			allowed("write", topic, () => button("Run now", () => attempt(run, ({ seq }) => `Appended seq ${seq} to ${topic}.`, again), { kind: "small" })),
			allowed("admin", name, () => button(row.paused ? "Resume" : "Pause", () => attempt(pause, ({ paused }) => `${name} is ${paused ? "paused" : "not paused"}.`, again), { kind: "small" })),
			button("Next ticks", () => dialog(`Next ticks of ${name}`, () => nextTicks(name)), { kind: "small" })),
	]
}

function nextTicks(name) {
	const place = h("div", loading("Loading"))
	session.request("POST", schedulePath(name, "/preview"), {}).then(
		({ times }) => put(place, times.length ? plainTable("Next ticks", ["In the zone of the schedule", "Here", "In#"], times.map(({ at, local }) => [local, date(at), num(duration(Math.max(at - session.now(), 0)))])) : empty("No more ticks", "The schedule has ended.")),
		(error) => put(place, failure(error)))
	return place
}
