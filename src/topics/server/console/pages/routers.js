/** Routers with their lag and rate, and a form that creates one after a preview of its filter. The map has their graph. */

import {
	actions, allowed, ask, badge, button, bytes, checkbox, copyAs, count, createButton, curl, empty, failure, field, filterOf, form, formDialog, h,
	input, isBusy, jsonLine, listAll, livePage, loading, num, pageHead, plainTable, put, range, rate, Readers, readReaders, redraw, select, session,
	short, span, swap, whole,
} from "../parts/kit.js"
import { linkTo } from "./topics.js"

export const title = "Routers"

export function show({ query, signal }) {
	const list = h("section.card", loading("Loading routers"))
	const readers = new Readers()

	async function refresh() {
		const [routers] = await Promise.all([listAll("/v0/routers", "routers", { signal }), readReaders(readers, signal)])
		for (const router of routers) {
			const key = `router ${router.source} ${router.router}`
			readers.note(key, session.now(), router.lag, router.forwarded_total)
			router.rate = readers.trend(key)?.done ?? null
		}
		if (routers.length === 0) {
			return swap(list, empty("No routers yet", "A router copies the records of one topic into another. This command creates one:",
				curl("/v0/routers/orders-to-audit", { source: "orders", dest: "audit" }, "PUT")))
		}
		if (!isBusy(list)) redraw(list, rows(routers, refresh))
	}

	const create = () => formDialog("Create a router", createRouter, refresh)
	return livePage(pageHead("Routers", { actions: [copyAs(actions.routers), createButton("Create router", query, create)] }),
		{ refresh, place: list, signal, scopes: "admin delete" }, list)
}

function rows(routers, again) {
	return plainTable("Routers", ["Router", "From", "To", "Copied#", "Rate#", "Behind#", "State", "Actions"],
		routers.map((router) => [
			[router.router, router.guarantee === "exactly_once" && badge("exactly once")], linkTo(router.source), linkTo(router.dest),
			num(router.forwarded_total),
			num(router.rate === null ? "–" : rate(router.rate)),
			num(router.lag ? span("warn", short(router.lag)) : "0"),
			h("td.state", router.last_error ? span("bad", `held up: ${router.last_error}`) : router.lag ? "catching up" : "up to date"),
			h("td.row-actions",
				allowed("delete", router.router, () => button("Delete", () => dropRouter(router, again), { kind: "small danger" })),
				copyAs(() => actions.router(router.router))),
		]), "routers")
}

function dropRouter({ router, source, dest }, again) {
	ask("Delete the router", ["New records of ", h("code", source), " are not copied to ", h("code", dest), " any more. Copies that exist stay."], {
		label: `Delete ${router}`, action: () => actions.dropRouter(router), said: `Deleted ${router}.`,
	}, again)
}

/** What a router with this filter would copy of the records that its source has. */
async function preview(name, { source, filter }) {
	const [found, sample] = await Promise.all([
		session.client.previewRouter(name, { source, filter }),
		session.client.diff(source, { fromSeq: 0, limit: 5, filter, includeTags: true }),
	])
	return h("div.preview", { role: "status" },
		h("p", h("strong", `${whole(found.matched)} of ${count(found.scanned, "record")}`), ` in ${source} match, ${bytes(found.bytes)}`, found.matched > 0 && `, seqs ${range(found.first_seq, found.last_seq)}`, "."),
		sample.records.length > 0 && h("ul.sample", sample.records.map((record) => h("li",
			span("seq", whole(record.seq)), record.tag !== undefined && span("tag", record.tag), jsonLine(record.data)))))
}

function createRouter(done) {
	const name = input({ name: "router", required: true, maxLength: 255 })
	const source = input({ name: "source", required: true, list: "topics-known" })
	const dest = input({ name: "dest", required: true, list: "topics-known" })
	const tag = input({ name: "filter" })
	const where = input({ name: "where", placeholder: "total > 100" })
	const guarantee = select([["at_least_once", "at least once"], ["exactly_once", "exactly once"]], "at_least_once", { name: "guarantee" })
	const past = checkbox("Copy the records that exist already", false, "Default: no, the router begins at the head of its source.")
	const cycle = checkbox("Allow cycles", false, "Default: no. A record on a cycle stops after 16 topics.")
	const answer = h("div")
	const known = h("datalist", { id: "topics-known" })
	void listAll("/v0/topics", "topics", { most: 1000 }).then((rows) => put(known, rows.map((row) => h("option", { value: row.topic }))), () => {})
	const config = () => ({
		source: source.value.trim(), dest: dest.value.trim(), filter: filterOf(tag.value, where.value),
		guarantee: guarantee.value === "exactly_once" ? "exactly_once" : undefined,
		from_seq: past.control.checked ? 0 : undefined, allow_cycle: cycle.control.checked || undefined,
	})
	const look = button("Preview", async () => {
		try {
			put(answer, await preview(name.value.trim() || "preview", config()))
		} catch (error) {
			put(answer, failure(error))
		}
	})
	return form([
		h("div.grid",
			field("Name", name, "Letters, digits and . _ - : > are allowed."),
			field("Guarantee", guarantee, "Default: at least once. Exactly once stamps each copy with its origin."),
			field("From", source, "The topic whose records are copied."),
			field("To", dest, "Created if it does not exist. A topic can be the destination of one source only."),
			field("Only this tag", tag, "Default: all records. With * at the end, every tag that begins so."),
			field("Where", where, "Only records where this holds, such as: customer.id = 7 and total > 100")),
		past.element, cycle.element, known, answer,
	], {
		label: "Create router", extra: [look],
		action: () => actions.putRouter(name.value.trim() || "NAME", config()),
		said: (made) => `${made.created ? "Created" : "Changed"} ${made.router}.`,
		done,
	})
}
