/** The replica: how far the bucket is behind, what it can restore, who follows, and the switch to a standby. */

import {
	actions, ago, alarm, allowed, ask, badge, button, bytes, card, copyAs, count, date, duration, empty, h, livePage, loading, note, num, pageHead,
	plainTable, put, redraw, session, short, span, stat, stats, whole,
} from "../parts/kit.js"

export const title = "Replica"

export function show({ signal }) {
	const place = h("div.stack", loading("Loading"))
	const role = span("badges")

	async function refresh() {
		const found = await session.get("/v0/replica", signal)
		put(role, found.role !== "none" && badge(found.role, "good"))
		redraw(place, found.role === "none" ? none() : [problem(found), figures(found), followers(found)])
	}

	return livePage(pageHead(title, { badges: [role], actions: [copyAs(actions.replica)] }), { refresh, place, signal, scopes: "admin", everyMs: 2000 }, place)
}

function none() {
	return h("section.card.flush", empty("This server has no replica",
		"A replica copies the log to an object store all the time. If the machine is lost, another one goes on from there, a standby by itself. Every moment of 7 days can be restored. This starts one, also with gs://, az:// or file:///directory:",
		"TOPICS_REPLICA=s3://bucket/prefix topics serve"))
}

const problem = ({ failure }) => failure && alarm(h("strong", "The bucket does not answer."), ` ${failure}`)

function figures({ role, writer, lag_ms: lag, lag_bytes: waiting, failures, stored }) {
	const row = (label, ...shown) => {
		const made = stat(label)
		made.set(...shown)
		return made
	}
	const { oldest_ms: oldest, objects, files, bytes: size, objects_last_hour: uploads, last_ms: last, last_object: number, term, checkpoint } = stored ?? {}
	const known = (value) => (stored ? value : "…")
	return card(role === "standby" ? ["Follows ", writer ? h("a", { href: `${writer}/console` }, writer) : "a writer that it does not know"] : "Copies to the bucket", [
		stats(
			row("Behind", duration(lag), waiting === null ? "" : `${bytes(waiting)} to upload`, lag > 10_000 ? "warn" : ""),
			row("Restores since", known(oldest ? ago(oldest) : "nothing yet"), oldest ? date(oldest) : ""),
			row("Stored", known(bytes(size)), stored && `${count(objects, "object")}, ${count(files, "file")}`),
			row("Uploads, last hour", known(whole(uploads)), "of the log"),
			row("Last object", known(last ? ago(last) : "none"), stored && `number ${whole(number)}, term ${term}`),
			row("Checkpoint", known(checkpoint ? `object ${whole(checkpoint)}` : "none yet")),
			row("Failures", short(failures), "since the start", failures ? "warn" : "")),
		note(stored ? "As of the last 10 minutes." : "Looking …", " Restore a moment: ", h("code", "topics restore URL DIRECTORY --ago 10m")),
	])
}

function followers({ role, followers: rows }) {
	const mine = role === "standby"
	return card(mine ? "This server" : "Standbys and read replicas", rows.length
		? plainTable("Followers", ["Server", "Role", "Behind#", "Actions"], rows.map((one) => [
			mine ? one.name : h("a", { href: `${one.address}/console` }, one.name), badge(one.takes_over ? "standby" : "read replica"),
			num(span(one.lag_ms > 10_000 ? "warn" : "", duration(one.lag_ms))),
			h("td.row-actions", one.takes_over && allowed("admin", null, () => button("Promote", () => promote(one, mine), { kind: "small danger" }))),
		]))
		: empty("Nobody follows", "A standby serves reads from this replica, and takes over if the writer is silent for 15 seconds. Run it on another machine:",
			"TOPICS_REPLICA=s3://bucket/prefix topics serve --standby --data-dir standby"))
}

function promote({ name, address }, mine) {
	ask(`Promote ${name}`, [
		mine ? "The writer" : "This server", " finishes its requests, uploads its last writes and exits. ", h("code", name), " goes on from there: no acknowledged record is lost, except in ephemeral topics. Clients that know both addresses pause for a few seconds; give ",
		h("a", { href: `${address}/console` }, address), " to others. Then start the old writer with --standby.",
	], { label: `Promote ${name}`, action: () => actions.promote(name), said: `${name} takes over.` }, () => {})
}
