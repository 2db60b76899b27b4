/** The records of a topic: a live tail that can be paused, history in both directions, jumps and filters. */

import { Gap } from "/client.js"
import { h, put, span } from "./dom.js"
import { indent, jsonLine, jsonTree } from "./exact.js"
import { UNIT_MS, clock, count, date, duration, problemOf, range, whole } from "./format.js"
import { debounce, session, setQuery, topicPath } from "./session.js"
import { actions } from "./snippets.js"
import { STATES } from "./timeline.js"
import { button, copyAs, copyButton, curl, empty, fact, failure, field, input, liveText } from "./ui.js"

const PAGE = 50
const SHOWN = 200
const FLUSH_MS = 200
const BACK_REQUESTS = 12

/**
 * The list of a topic's records. `state()` returns the last known state of the topic. Jump, filters and the open record
 * are in the URL.
 */
export function records(topic, { signal, state, query }) {
	let mode = "tail" // or "history"
	let first = 0 // seqs of the shown window
	let last = 0
	let stop = null
	let turn = 0 // of the newest page: an older one that arrives late is not shown
	let opened = Number(query.get("open") ?? 0)
	const list = h("div.records", { role: "log", "aria-label": `Records of ${topic}`, "aria-live": "off" })
	const status = liveText()
	const problem = h("div")
	const jump = input({ name: "jump", placeholder: "120, 14:05, 10m ago", size: 16, value: query.get("at") ?? "" })
	const tag = input({ name: "tag", placeholder: "order-7*", size: 14, value: query.get("tag") ?? "", "data-search": "" })
	const node = input({ name: "node", size: 12, value: query.get("node") ?? "" })
	const where = input({ name: "where", placeholder: "total > 100 and sku = 'V60'", size: 26, value: query.get("where") ?? "" })
	const pause = button("Pause", () => (stop ? halt() : follow(last)), { kind: "small" })
	const older = button("Older", () => page(() => readBack(first), { at: "end" }), { kind: "small" })
	const newer = button("Newer", () => page(() => readOn(last)), { kind: "small" })
	const latest = button("Latest", () => {
		jump.value = ""
		restart()
	}, { kind: "small" })

	const filters = () => ({ filter: filterOf(tag.value, where.value), node: node.value.trim() || undefined })
	const view = () => ({ includeTags: true, ...filters() })

	const toolbar = h("form.toolbar.filters", {
		on: {
			submit: (event) => {
				event.preventDefault()
				reload({ push: true })
			},
		},
	},
	h("div.group", pause, older, newer, latest),
	field("Jump to seq or time", jump), field("Tag", tag), field("Where", where), field("Not from node", node),
	h("button.visually-hidden", { type: "submit", tabIndex: -1 }, "Show"), // Enter sends a form that has one
	copyAs(() => (mode === "tail" ? actions.follow(topic, { ...filters(), include_tags: true }) : actions.read(topic, { from_seq: Math.max(first - 1, 0), limit: PAGE, include_tags: true, ...filters() }))))
	const typed = debounce(() => signal.aborted || reload())
	for (const control of [tag, where, node]) control.addEventListener("input", typed)

	/** Show what the controls say, and put it into the URL. */
	function reload(options) {
		const wanted = jump.value.trim()
		setQuery({ at: wanted, tag: tag.value.trim(), where: where.value.trim(), node: node.value.trim() }, options)
		if (wanted) void page(() => readFrom(wanted))
		else restart()
	}

	function restart() {
		opened = 0
		setQuery({ at: null, open: null })
		void page(() => readBack(Infinity), { at: "end", then: () => follow(last) })
	}

	/** Show one page. `at` says which of its ends is in view. */
	async function page(read, { at = "start", then = null } = {}) {
		halt()
		put(problem)
		const mine = ++turn
		try {
			const items = await read()
			if (mine !== turn || signal.aborted) return
			mode = "history"
			show(items, at)
			then?.()
		} catch (error) {
			if (!signal.aborted && mine === turn) put(problem, failure(error))
		}
	}

	function show(items, at) {
		const before = list.scrollTop
		put(list, items.map(row))
		const seqs = items.filter((item) => !(item instanceof Gap)).map((item) => item.seq)
		if (seqs.length) {
			first = seqs[0]
			last = seqs[seqs.length - 1]
		} else if (state()) {
			first = state().head_seq + 1
			last = state().head_seq
		}
		if (items.length === 0) put(list, nothing())
		list.scrollTop = at === "end" ? list.scrollHeight : at === "start" ? 0 : before
		const open = opened && list.querySelector(`[data-seq="${opened}"]`)
		if (open) {
			open.open = true
			list.scrollTop = open.offsetTop - list.offsetTop
		}
		report()
	}

	function nothing() {
		if (tag.value || where.value || node.value) return empty("No record matches", "Clear the filters, or look at other seqs.")
		return empty("No live records here", "This command writes one:",
			curl(topicPath(topic), { records: [{ data: { hello: "world" } }] }))
	}

	function report(extra = "") {
		const known = state()
		const part = list.querySelector(".record") ? `Seqs ${range(first, last)}` : "No records"
		put(status, mode === "tail" ? `${part}, live${extra}` : `${part}${known ? `, head ${whole(known.head_seq)}` : ""}${extra}`)
		put(pause, stop ? "Pause" : "Go live")
		pause.classList.toggle("live", Boolean(stop))
		older.disabled = known ? first <= known.earliest_seq : false
		newer.disabled = known ? last >= known.head_seq : false
	}

	/** Put the record that was opened last into the URL. */
	function note(seq, isOpen) {
		if (!isOpen && seq !== opened) return
		opened = isOpen ? seq : 0
		setQuery({ open: opened || null })
	}

	/** Show only the records with this tag. */
	function pick(text) {
		tag.value = text
		reload({ push: true })
	}

	const row = (item) => drawn(item, { onToggle: note, onTag: pick })

	// --- reading

	/** Return the page that starts at a seq or a time. */
	async function readFrom(wanted) {
		const seq = /^[0-9 ,_]+$/.test(wanted) ? Number(wanted.replace(/[ ,_]/g, "")) : null
		if (seq !== null) return readOn(seq - 1)
		const ts = parseTime(wanted)
		if (ts === null) throw problemOf(`"${wanted}" is neither a seq nor a time. Try 120, 14:05, 2026-01-31 14:05 or 10m ago`)
		const found = await session.client.diff(topic, { fromSeq: 0, fromTs: ts, limit: PAGE, ...view(), signal })
		return [...(found.gap && found.records.length === 0 ? [found.gap] : []), ...found.records]
	}

	const readOn = (after) => collect(Math.max(after, 0), { most: PAGE })

	/** Return the last page before a seq. The API reads forwards, so that the search begins further and further back. */
	async function readBack(before) {
		const known = await session.client.topic(topic)
		const end = Math.min(before, known.head_seq + 1)
		let size = PAGE
		let items = []
		for (let request = 0; request < BACK_REQUESTS; request++) {
			const start = Math.max(end - 1 - size, 0)
			items = await collect(start, { end })
			const found = items.filter((item) => !(item instanceof Gap)).length
			if (found >= PAGE || start < known.earliest_seq) break
			size *= 4
		}
		return items.slice(-PAGE)
	}

	/** Read from a seq on, until there are so many items, or to the record before `end`. */
	async function collect(from, { end = Infinity, most = Infinity }) {
		const items = []
		for (let request = 0; request < BACK_REQUESTS && items.length < most && from < end - 1; request++) {
			const found = await session.client.diff(topic, { fromSeq: from, limit: Math.min(most - items.length, 1000), ...view(), signal })
			if (found.gap && found.gap.firstSeq < end) items.push(found.gap)
			items.push(...found.records.filter((record) => record.seq < end))
			if (found.caughtUp || found.nextFromSeq <= from) break
			from = found.nextFromSeq
		}
		return items
	}

	// --- following

	function halt() {
		stop?.abort()
		stop = null
		report()
	}

	/** Show new records as they come, from a seq on. */
	async function follow(from) {
		halt()
		mode = "tail"
		const mine = (stop = new AbortController())
		const end = () => mine.abort()
		signal.addEventListener("abort", end)
		let held = []
		let skipped = 0
		const timer = setInterval(() => {
			if (held.length === 0) return
			const rows = held
			held = []
			addRows(rows, skipped)
			skipped = 0
		}, FLUSH_MS)
		report()
		try {
			const options = { ...view(), fromSeq: from, signal: mine.signal, waitForTopic: true, onRetry: (_, waitMs) => report(`, connecting again in ${duration(waitMs)}`) }
			for await (const item of session.client.follow(topic, options)) {
				held.push(item)
				if (held.length > SHOWN) {
					held.shift()
					skipped++
				}
				if (!(item instanceof Gap)) last = item.seq
			}
		} catch (error) {
			if (!mine.signal.aborted) put(problem, failure(error))
		} finally {
			clearInterval(timer)
			signal.removeEventListener("abort", end)
			if (held.length && !signal.aborted) addRows(held, skipped)
			if (stop === mine) {
				stop = null
				report()
			}
		}
	}

	function addRows(items, skipped) {
		const near = list.scrollHeight - list.scrollTop - list.clientHeight < 60
		list.querySelector(".empty")?.remove()
		if (skipped) list.append(h("div.between", `${count(skipped, "record")} came faster than this page shows: use Older to see them`))
		list.append(...items.map(row))
		while (list.childElementCount > SHOWN) list.firstElementChild.remove()
		const shown = list.querySelector(".record")
		if (shown) first = Number(shown.dataset.seq)
		if (near) list.scrollTop = list.scrollHeight
		report()
	}

	if (opened && !jump.value) jump.value = String(opened)
	if (jump.value) void page(() => readFrom(jump.value.trim()))
	else restart()
	return {
		element: h("div", toolbar, problem, status, list),
		/** Show the records from a seq or time on. */
		jump: (wanted) => {
			jump.value = String(wanted)
			reload({ push: true })
		},
		refresh: report,
		/** Read the shown window again, after something has changed. */
		again: () => (mode === "tail" ? restart() : page(() => readOn(first - 1), { at: "keep" })),
	}
}

/** One record, or the gap where records were lost. */
function drawn(item, { onToggle, onTag }) {
	if (item instanceof Gap) {
		return h("div", { class: `between gap ${item.reason}` },
			h("strong", `Seqs ${range(item.firstSeq, item.lastSeq)} are missing`), ` ${STATES[item.reason] ?? item.reason}`,
			item.missed !== undefined && `, about ${count(item.missed, "record")} lost`)
	}
	const details = h("details.record", {
		"data-seq": item.seq,
		on: {
			toggle: () => {
				if (details.open && details.childElementCount === 1) details.append(expanded(item))
				onToggle(item.seq, details.open)
			},
		},
	}, h("summary",
		span("seq", whole(item.seq)),
		h("time", { title: date(item.ts), dateTime: new Date(item.ts).toISOString() }, clock(item.ts)),
		span("labels", item.tag !== undefined && h("span.tag", { title: `Show only ${item.tag}`, on: { click: (event) => (event.preventDefault(), onTag(item.tag)) } }, item.tag), item.node !== undefined && span("node", item.node)),
		jsonLine(item.data)))
	return details
}

function expanded(item) {
	return h("div.expanded",
		h("dl.facts",
			fact("Seq", whole(item.seq)), fact("Committed", date(item.ts)), item.tag !== undefined && fact("Tag", item.tag), item.node !== undefined && fact("Node", item.node)),
		h("h3", "Data"), jsonTree(item.data),
		item.meta !== undefined && [h("h3", "Meta"), jsonTree(item.meta)],
		h("div.toolbar", copyButton(() => indent(item.data.node), "Copy data"), copyButton(() => location.href, "Copy link")))
}

/** The filter of a tag, which may end in *, and of a condition; undefined without both. */
export function filterOf(tag, where = "") {
	const [text, condition] = [tag.trim(), where.trim()]
	const parts = [text && ["tag", text.endsWith("*") ? "Glob" : "Eq", text], condition && ["Where", condition]].filter(Boolean)
	return parts.length > 1 ? ["And", parts] : parts[0]
}

/** A time as ms since 1970: "14:05", "2026-01-31 14:05", "10m ago". Null if it is none. */
export function parseTime(text, now = Date.now()) {
	const back = /^(\d+)\s*(s|m|h|d)(?:\s+ago)?$/.exec(text)
	if (back) return now - Number(back[1]) * UNIT_MS[back[2]]
	const today = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/.exec(text)
	if (today) return new Date(now).setHours(Number(today[1]), Number(today[2]), Number(today[3] ?? 0), 0)
	const parsed = Date.parse(text)
	return Number.isNaN(parsed) ? null : parsed
}
