/** SQL over topics: a statement, its rows as a table, and a plot of them. The statement is in the address. */

import {
	actions, button, code, copyAs, count, duration, failure, h, Json, jsonFold, listAll, liveText, missingNote, note, pageHead, plainTable, plot, put,
	segmented, session, setQuery, short, span,
} from "../parts/kit.js"

export const title = "SQL"

const COLORS = ["c1", "c2", "live", "restart", "ttl"]
const MOST_BARS = 60
const TIME = /^\d{4}-\d\d-\d\d([T ][\d:.]+Z?)?$/

export function show({ query, signal }) {
	let running = null
	let found = null
	let view = query.get("view") ?? "table"
	const text = h("textarea", {
		rows: 6, spellcheck: false, "aria-label": "Statement", "data-search": "", value: query.get("q") ?? "", placeholder: "select * from orders",
		on: { keydown: (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && (event.preventDefault(), void run()) },
	})
	const status = liveText()
	const place = h("section.card")
	const examples = h("div.groups", { role: "group", "aria-label": "Examples" })
	const main = button("Run", () => (running ? running.abort() : void run()), { kind: "primary", title: "Ctrl Enter" })
	const views = segmented("Shown as", [["table", "Table"], ["plot", "Plot"]], view, (chosen) => {
		setQuery({ view: view = chosen })
		draw()
	})

	/** Run the statement. The one before ends. */
	async function run() {
		const statement = text.value.trim()
		if (!statement) return text.focus()
		running?.abort()
		const mine = running = new AbortController()
		setQuery({ q: statement }, { push: true })
		put(main, "Stop")
		put(status, "Running …")
		try {
			const answer = await session.request("POST", "/v0/sql", { query: statement }, { signal: AbortSignal.any([signal, mine.signal]) })
			if (running !== mine) return
			found = answer
			put(status, count(found.rows.length, "row"), found.more && ", and there are more", `, ${duration(Math.round(found.performance.server_total_ms))}`)
			draw()
		} catch (error) {
			if (running !== mine) return
			put(status, mine.signal.aborted && "Stopped.")
			if (!mine.signal.aborted) put(place, failure(error), error.detail?.install && code(error.detail.install))
		} finally {
			if (running === mine) running = put(main, "Run") && null
		}
	}

	function draw() {
		if (found) put(place, (view === "plot" ? drawn : listed)(found))
	}

	/** Offer statements about the topic that was written to last. */
	async function suggest() {
		const topics = await listAll("/v0/topics?details=true", "topics", { signal, most: 1000 })
		const last = topics.sort((a, b) => (b.last_write_ts ?? 0) - (a.last_write_ts ?? 0))[0]?.topic
		const name = /^[a-z_]\w*$/.test(last) ? last : JSON.stringify(last)
		put(examples, Object.entries({
			Tables: "show tables",
			...(last && {
				"Last records": `select seq, ts, tag, data from ${name} order by seq desc limit 20`,
				"By tag": `select tag, count(*) as records from ${name} group by tag order by records desc`,
				"By minute": `select date_trunc('minute', ts) as minute, count(*) as records from ${name} group by 1 order by 1`,
			}),
		}).map(([label, statement]) => button(label, () => {
			text.value = statement
			void run()
		}, { kind: "chip" })))
	}

	const head = pageHead(title, { actions: [copyAs(() => actions.sql(text.value.trim()))] })
	const refused = missingNote("read")
	if (refused) return [head, refused]
	void suggest().catch(() => {})
	if (text.value) void run()
	return [head,
		h("section.card.stack", text, h("div.toolbar", main, views.element, status), examples,
			note("Topics are tables: topic, seq, ts, node, tag, meta, data. Fields are paths: data.customer.name. A statement ends after 50 s.")),
		place]
}

function listed({ columns, rows }) {
	const numeric = columns.map((_, at) => rows.every((row) => row[at] === null || typeof row[at] === "number"))
	return plainTable("Rows", columns.map((name, at) => name + (numeric[at] ? "#" : "")), rows.map((row) => row.map((value, at) => cell(value, numeric[at]))), "jobs")
}

function cell(value, isNumber) {
	const shown = value === null ? span("faint", "null") : typeof value === "object" ? JSON.stringify(value) : String(value)
	try {
		if (/^[{[]/.test(shown)) return h("td.data", jsonFold(Json.parse(shown)))
	} catch {}
	return h("td", { class: isNumber ? "number" : "" }, shown)
}

/** Lines over a column of times, otherwise a bar for each row. */
function drawn({ columns, rows }) {
	const all = columns.map((_, at) => at)
	const values = all.filter((at) => rows.some((row) => typeof row[at] === "number"))
	const label = all.find((at) => !values.includes(at)) ?? 0
	if (!values.length) return note("A plot needs a column of numbers.")
	if (rows.every((row) => TIME.test(row[label]))) {
		const sorted = [...rows].sort((a, b) => (a[label] < b[label] ? -1 : 1))
		const times = sorted.map((row) => Date.parse(row[label]))
		const picture = plot(columns[label], { format: short, spanMs: Math.max(times.at(-1) - times[0], 1000), gapMs: Infinity, ends: true })
		picture.set(times, values.slice(0, COLORS.length).map((at, nth) => ({ name: columns[at], color: COLORS[nth], area: !values[1], values: sorted.map((row) => row[at]) })))
		return picture.element
	}
	const at = values.at(-1)
	const most = Math.max(...rows.map((row) => row[at]), 0) || 1
	return [plainTable("Bars", [columns[label], "", `${columns[at]}#`], rows.slice(0, MOST_BARS).map((row) => {
		const ink = h("i.c1")
		ink.style.width = `${Math.max(row[at] / most, 0) * 100}%`
		return [cell(row[label]), h("td.bar", ink), cell(row[at], true)]
	})), rows[MOST_BARS] && note(`The first ${MOST_BARS} rows.`)]
}
