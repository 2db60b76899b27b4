/** The dead letters of a queue: filter, groups, and redrive, deletion or repair of what is selected. */

import {
	actions, ago, ask, button, copyAs, count, date, debounce, empty, entry, field, form, formDialog, h, icon, indent, input, isBusy, Json, jsonFold,
	liveText, loading, missingNote, note, num, plainTable, put, query, redraw, select, session, setQuery, span, swap, toast, topicPath, whole,
} from "../parts/kit.js"

const LOOKED_AT = 1000 // the last seqs of the dead-letter topic
const SHOWN = 100
const MOST_GROUPS = 12

/** What is known of a dead letter. Each is a column and a way to group: another fact needs one more line. */
const FACTS = [
	{ label: "Tag", of: (letter) => letter.tag },
	{ label: "Reason", of: (letter) => letter.meta.value.$dead_letter_reason?.split("\n")[0] },
	{ label: "Deliveries", number: true, of: (letter) => letter.meta.value.$dead_letter_deliveries },
]

/** A list of the dead letters. `state()` is the state of the queue, `again` reads everything again. */
export function deadLetters({ signal, state, again }) {
	let letters = []
	const chosen = new Set()
	const search = input({ type: "search", placeholder: "Filter by tag or data", "aria-label": "Filter dead letters by tag or data", value: query().get("filter") ?? "" })
	const grouping = select([["", "nothing"]], "", { name: "group" })
	const groups = h("div.groups", { role: "group", "aria-label": "Groups" })
	const summary = liveText()
	const act = h("div.toolbar")
	const place = h("div", loading("Loading"))
	const tools = h("div.toolbar.filters", search, field("Group by", grouping), summary, act)
	let value = query().get("value")
	let offered = null

	search.addEventListener("input", debounce(() => {
		if (signal.aborted) return
		setQuery({ filter: search.value.trim() })
		draw()
	}, 120))
	grouping.addEventListener("change", () => {
		value = null
		setQuery({ group: grouping.value, value: null })
		draw()
	})

	async function refresh() {
		const target = state().config.dead_letter
		if (!target) return void put(place, empty("This queue has no dead-letter topic", "Jobs are delivered until a worker completes them. Configure the number of deliveries and a dead-letter topic to move failing jobs aside."))
		if (!session.covers(target)) return void put(place, missingNote("read", target))
		if (isBusy(place)) return
		letters = (await entry(target, signal)) ? await load(state().topic, target, signal) : []
		for (const seq of chosen) if (!letters.some((letter) => letter.seq === seq)) chosen.delete(seq)
		offer()
		draw()
	}

	/** Offer to group by the facts, and by fields of the data with few values. */
	function offer() {
		const fields = fieldsOf(letters)
		const choices = ["", ...FACTS.map((fact) => fact.label), ...fields]
		if (offered === choices.join()) return
		offered = choices.join()
		const before = grouping.value || query().get("group")
		put(grouping, choices.map((one) => h("option", { value: one }, one || "nothing")))
		grouping.value = choices.includes(before) ? before : letters.some((letter) => letter.tag !== undefined) ? "Tag" : fields[0] ?? ""
	}

	const groupOf = (letter) => {
		const fact = FACTS.find((one) => one.label === grouping.value)
		const found = fact ? fact.of(letter) : letter.data.value?.[grouping.value.replace(/^data\./, "")]
		return found === undefined ? "none" : String(found)
	}

	function draw() {
		const target = state().config.dead_letter
		tools.hidden = letters.length === 0
		if (letters.length === 0) {
			put(groups)
			return swap(place, empty("No dead letters", `Jobs that were delivered ${count(state().config.max_deliveries, "time")} without success go to ${target}.`))
		}
		const wanted = search.value.trim().toLowerCase()
		const found = letters.filter((letter) => !wanted || `${letter.tag ?? ""} ${letter.data.source}`.toLowerCase().includes(wanted))
		const sizes = new Map()
		if (grouping.value) for (const letter of found) sizes.set(groupOf(letter), (sizes.get(groupOf(letter)) ?? 0) + 1)
		const ranked = [...sizes].sort((a, b) => b[1] - a[1])
		redraw(groups, ranked.slice(0, MOST_GROUPS).map(([one, size]) => button([h("b", whole(size)), ` × ${one}`], () => {
			value = value === one ? null : one
			setQuery({ value, group: grouping.value })
			draw()
		}, { kind: "small chip", "aria-pressed": String(value === one) })), ranked.length > MOST_GROUPS && span("faint", `and ${whole(ranked.length - MOST_GROUPS)} more`))
		const rows = value !== null && sizes.has(value) ? found.filter((letter) => groupOf(letter) === value) : found
		put(summary, rows.length === letters.length ? count(letters.length, "dead letter") : `${whole(rows.length)} of ${count(letters.length, "dead letter")}`)
		drawActions(rows)
		drawTable(rows.slice(0, SHOWN), rows.length)
	}

	function drawActions(rows) {
		const { topic, config } = state()
		const may = session.can("read write delete", topic) && session.covers(config.dead_letter)
		const picked = letters.filter((letter) => chosen.has(letter.seq)).map((letter) => letter.seq)
		const narrowed = rows.length < letters.length
		const which = picked.length ? { seqs: picked } : narrowed ? { seqs: rows.map((letter) => letter.seq) } : {}
		const what = picked.length ? `${whole(picked.length)} selected` : narrowed ? `these ${whole(rows.length)}` : "all"
		redraw(act, may ? [
			button([icon("redrive"), `Redrive ${what}`], () => redrive(state(), which, again), { kind: "small primary" }),
			which.seqs && button([icon("trash"), `Delete ${what}`], () => remove(config.dead_letter, which.seqs, again), { kind: "small danger" }),
			copyAs(() => actions.redrive(topic, which)),
		] : missingNote("write delete", topic))
	}

	function drawTable(rows, size) {
		const all = rows.every((letter) => chosen.has(letter.seq))
		const mark = (seqs, on) => {
			for (const seq of seqs) {
				if (on) chosen.add(seq)
				else chosen.delete(seq)
			}
			draw()
		}
		const tick = (label, checked, seqs) => h("input", { type: "checkbox", checked, "aria-label": label, "data-row": "", on: { change: (event) => mark(seqs, event.target.checked) } })
		redraw(place,
			plainTable("Dead letters", [tick("Select all that are shown", all, rows.map((letter) => letter.seq)), "Job#", ...FACTS.map((fact) => fact.label + (fact.number ? "#" : "")), "Dead since", "Data", "Actions"],
				rows.map((letter) => [
					tick(`Select job ${whole(letter.meta.value.$dead_letter_src_seq)}`, chosen.has(letter.seq), [letter.seq]),
					num(letter.meta.value.$dead_letter_src_seq),
					...FACTS.map((fact) => (fact.number ? num : String)(fact.of(letter) ?? "–")),
					h("td", { title: date(letter.ts) }, ago(letter.ts)),
					h("td.data", jsonFold(letter.data)),
					h("td.row-actions", session.can("read write delete", state().topic) && [
						button("Redrive", () => redrive(state(), { seqs: [letter.seq] }, again), { kind: "small", title: "Move this job back into the queue" }),
						button([icon("edit"), "Edit"], () => repair(state(), letter, again), { kind: "small", title: "Change the data, and move the job back into the queue" }),
					]),
				]), "jobs"),
			size > rows.length && note(`The newest ${whole(rows.length)} of ${whole(size)}. Actions apply to all ${whole(size)}.`))
	}

	return { element: h("div.stack", tools, groups, place), refresh, size: () => letters.length }
}

async function load(topic, target, signal) {
	const { head_seq: head } = await session.get(topicPath(target, "?touch=false"), signal)
	const page = await session.client.diff(target, { fromSeq: Math.max(head - LOOKED_AT, 0), limit: LOOKED_AT, includeTags: true, signal })
	return page.records.filter((record) => record.meta?.value.$dead_letter_from === topic).reverse()
}

/** Fields of the data that have the same value in several letters. */
function fieldsOf(letters) {
	const seen = new Map()
	for (const { data: { value } } of letters) {
		if (value === null || typeof value !== "object" || Array.isArray(value)) continue
		for (const [name, one] of Object.entries(value)) {
			if (one === null || typeof one === "object") continue
			if (!seen.has(name)) seen.set(name, new Set())
			seen.get(name).add(one)
		}
	}
	return [...seen].filter(([, values]) => values.size <= Math.max(letters.length / 2, 5)).map(([name]) => `data.${name}`)
}

/** Count first, then move. */
async function redrive({ topic }, which, again) {
	const action = (more) => actions.redrive(topic, { ...which, limit: 10_000, ...more })
	try {
		const { redriven, caught_up: all, dead_letter: source } = await session.run(action({ dry_run: true }))
		if (redriven === 0) return toast("No dead letter of this queue was found: it may have been redriven already.", "bad")
		const jobs = count(redriven, "job")
		ask("Redrive dead letters", [h("strong", all ? jobs : `${jobs} or more`), ` would move from ${source} back into ${topic}. Their delivery counts begin again.`], {
			label: `Redrive ${jobs}`, kind: "primary", action, said: (moved) => `Moved ${count(moved.redriven, "job")} back into ${topic}.`,
		}, again)
	} catch (error) {
		toast(error.message, "bad")
	}
}

function remove(target, seqs, again) {
	const size = count(seqs.length, "dead letter")
	ask("Delete dead letters", [h("strong", size), ` of ${target} would be deleted. Their jobs are given up. This cannot be undone.`], {
		label: `Delete ${size}`, action: () => actions.deleteRecords(target, { seqs }), said: (gone) => `Deleted ${count(gone.deleted, "dead letter")}.`,
	}, again)
}

/** Change the data of a job. The new job is written first, so that a failure loses nothing. */
function repair(state, letter, again) {
	const data = h("textarea", { rows: 10, spellcheck: false, required: true, name: "data", value: indent(letter.data.node) })
	const tag = input({ name: "tag", value: letter.tag ?? "" })
	const kept = letter.meta.node.entries.filter(([key]) => !key.startsWith('"$dead_letter_'))
	const record = () => ({
		data: Json.parse(data.value), tag: tag.value || undefined, meta: kept.length ? Json.parse(indent({ open: "{", close: "}", entries: kept })) : undefined,
	})
	formDialog(`Edit job ${whole(letter.meta.value.$dead_letter_src_seq)}`, (done) => form([
		note("A new job with this data is added to the queue. Then the dead letter is deleted."), field("Data, any JSON value", data), field("Tag", tag),
	], {
		label: "Add the job and delete the dead letter",
		action: () => actions.append(state.topic, record()), said: ({ first_seq: seq }) => `Added as job ${whole(seq)}.`,
		done: async () => {
			await session.run(actions.deleteRecords(state.config.dead_letter, { seqs: [letter.seq] }))
			done()
		},
	}), again)
}
