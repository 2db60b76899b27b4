/** The forms of a topic: create and configure, write a record, delete records, delete the topic. */

import {
	actions, ask, bytes, checkbox, count, date, duration, field, filterOf, form, formDialog, h, input, Json, note, parseCount, parseDuration, parseSize,
	printDuration, printSize, problemOf, put, schemaForm, select, session, whole,
} from "../parts/kit.js"

const SURVIVES = {
	disk: "survives a crash of the process; a power loss can take the last moments, and is reported",
	fsync: "survives a power loss", replicated: "survives the loss of the machine", memory: "survives a crash of the process", ephemeral: "is gone after a restart",
}
const DURABILITIES = Object.entries(SURVIVES).map(([name, text]) => [name, `${name}: ${text}`])
const SCHEMA_MODES = [["reject", "reject: refuse the request"], ["warn", "warn: store them, and warn the writer"], ["off", "off: check nothing"]]
const COMPATIBILITIES = [
	["backward", "backward: what matched still matches"], ["forward", "forward: what matches has matched before"], ["full", "full: both"], ["none", "none: any change"],
]
const DISCARDS = [["old", "old: evict the oldest records"], ["reject", "reject: refuse new writes"]]

/** Options by name: label, kind, default, what it means, and a choice of values. */
const OPTIONS = {
	ttl_ms: ["Keep records for", "duration", 0, "Such as 30m, 12h or 7d. Empty: they never expire. Readers that missed an expired record get a tombstone."],
	cap_records: ["Maximum records", "count", 0, "Such as 5000 or 10k. Empty: no cap."],
	cap_bytes: ["Maximum size", "size", 0, "Such as 500MiB or 1GiB. Empty: no cap."],
	discard: ["When a cap is reached", "choice", "old", "Evicted records leave a tombstone for readers that missed them. A queue should refuse new writes: its records are work.", DISCARDS],
	durability: ["Durability", "choice", "disk", "What a write has survived when it is acknowledged.", DURABILITIES],
	priority: ["Priority", "number", null, "-1000 to 1000: who is served first under pressure. Empty: follows how recently the topic was read."],
	auto_priority: ["Priority follows reads", "flag", true, "Without a priority of its own, a topic that was read recently is served first."],
	auto_create: ["Created by writes", "flag", true, "A write may create the topic, and the server its dead-letter topic."],
	archive: ["Hold for the archive", "hold", null, "Records do not expire before a pipeline has archived them."],
	idempotency_window_ms: ["Remember idempotency keys for", "duration", 120_000, "A write that repeats a key within this time is not stored twice."],
	dedupe_node: ["Readers can skip their own records", "flag", true, "A reader that names its node does not get the records of that node."],
	schema: ["Schema", "json", null, "A JSON Schema that the data of new records must match. Empty: any JSON value."],
	schema_mode: ["Records that do not match it", "choice", "reject", null, SCHEMA_MODES],
	compatibility: ["Changes of the schema", "choice", "backward", null, COMPATIBILITIES],
	lease_ms: ["Lease", "duration", 30_000, "How long a worker holds a job before another worker gets it."],
	max_deliveries: ["Deliveries before a job is dead", "count", 0, "After this many deliveries without success, the job moves to the dead-letter topic. Empty: no limit."],
	dead_letter: ["Dead-letter topic", "text", null, "Where jobs go that were delivered too often. Without it, they are delivered again and again."],
	claim_jitter_ms: ["Gather claims for", "duration", 0, "Workers then get even shares. Empty: a claim is answered at once."],
	leases_durable: ["Leases survive a restart", "flag", false, "Otherwise held jobs are delivered again after a restart."],
	max_in_flight: ["Jobs held at a time", "count", 0, "By all workers together. Empty: no limit."],
	max_in_flight_per_key: ["Jobs of a key at a time", "number", 1, "With 1, the jobs of a key run one after the other. 0: no limit."],
	paused: ["Paused", "flag", false, "Workers get no jobs."],
}
const QUEUE_OPTIONS = ["lease_ms", "max_deliveries", "dead_letter", "claim_jitter_ms", "leases_durable", "max_in_flight", "max_in_flight_per_key", "paused"]
const SAFE = { discard: "reject", leases_durable: true } // what "Create" proposes for a queue
const FIRST = { log: ["ttl_ms"], queue: ["max_deliveries", "dead_letter"] } // what "Create" asks beside name and type
const LOG_OPTIONS = Object.keys(OPTIONS).filter((name) => !QUEUE_OPTIONS.includes(name))
const optionsOf = (type) => (type === "queue" ? [...QUEUE_OPTIONS, ...LOG_OPTIONS] : LOG_OPTIONS)
const NULLABLE = ["priority", "dead_letter", "archive", "schema"]
const READ = { duration: parseDuration, size: parseSize, count: parseCount, number: parseCount, text: (text) => text }
const PRINT = { duration: printDuration, size: printSize, count: String, number: String, text: String }

/** The control of an option: its element, and the value that it has; null if it is empty. */
function control(name, value) {
	const [label, kind, standard, help, choices] = OPTIONS[name]
	if (kind === "flag" || kind === "hold") {
		const made = checkbox(label, kind === "hold" ? value?.hold ?? false : value ?? standard, help)
		return { name, element: made.element, read: () => (kind === "flag" ? made.control.checked : made.control.checked ? { hold: true } : null) }
	}
	if (kind === "choice") {
		const made = select(choices, value ?? standard, { name })
		return { name, element: field(label, made, help), read: () => made.value }
	}
	if (kind === "json") {
		const before = value ? JSON.stringify(value, null, 2) : ""
		const made = h("textarea", { rows: 3, spellcheck: false, name, value: before, placeholder: '{"type": "object"}' })
		return { name, element: field(label, made, help), read: () => (made.value === before ? value : made.value.trim() ? parse(made.value, name) : null) }
	}
	const shown = value || (value === 0 && standard !== 0)
	const made = input({ name, value: shown ? PRINT[kind](value) : "", placeholder: standard ? `default: ${PRINT[kind](standard)}` : "" })
	return {
		name,
		element: field(label, made, help),
		read: () => {
			const text = made.value.trim()
			return text ? READ[kind](text) : standard
		},
	}
}

/** Return the options that differ from the present configuration, or from the defaults. */
function changed(made, current, type) {
	const config = current ? {} : { type }
	for (const { name, read } of made) {
		const value = read()
		if (value === null && !(current && NULLABLE.includes(name))) continue
		const before = current ? current[name] ?? null : OPTIONS[name][2]
		if (JSON.stringify(value) !== JSON.stringify(before)) config[name] = value
	}
	return config
}

/** The configuration in words: `[label, text, is default]`, without fields that have no effect. */
export function explain({ type, config, epoch }) {
	const words = {
		durability: Object.fromEntries(DURABILITIES)[config.durability],
		discard: config.cap_records || config.cap_bytes ? (config.discard === "old" ? "the oldest records are evicted" : "new writes are refused") : null,
		auto_priority: config.priority === null ? (config.auto_priority ? "yes" : "no") : null,
		archive: config.archive?.hold ? "yes" : "no",
		schema: config.schema ? `version ${config.schema_versions.length}` : "any JSON value",
		...(config.schema ? {} : { schema_mode: null, compatibility: null }),
		max_deliveries: config.dead_letter && config.max_deliveries ? count(config.max_deliveries, "delivery", "deliveries") : "no limit",
	}
	const text = (name) => {
		if (name in words) return words[name]
		const [, kind, , help] = OPTIONS[name]
		const value = config[name]
		if (kind === "flag") return value ? "yes" : "no"
		if (!value) return /Empty: ([^.]*)\./.exec(help)?.[1] ?? (kind === "text" ? "none" : "not at all")
		return kind === "duration" ? duration(value) : kind === "size" ? bytes(value) : kind === "count" ? whole(value) : String(value)
	}
	const rows = optionsOf(type).map((name) => [OPTIONS[name][0], text(name), JSON.stringify(config[name] ?? null) === JSON.stringify(OPTIONS[name][2])])
	return [...rows.filter(([, value]) => value !== null), ["Created", date(epoch), false]]
}

/** A form that creates a topic. `done` gets the answer. */
export function createTopic(done, { type = "log" } = {}) {
	const name = input({ name: "topic", required: true, maxLength: 255 })
	const kind = select([["log", "log: every reader gets every record"], ["queue", "queue: each job goes to one worker"]], type, { name: "type" })
	const [first, rest] = [h("div.grid"), h("div.grid")]
	let made = []
	const arrange = () => {
		made = optionsOf(kind.value).map((option) => control(option, (kind.value === "queue" && SAFE[option]) || null))
		for (const [place, wanted] of [[first, true], [rest, false]]) put(place, made.filter((one) => FIRST[kind.value].includes(one.name) === wanted).map((one) => one.element))
	}
	kind.addEventListener("change", arrange)
	arrange()
	const config = () => changed(made, null, kind.value)
	return form([
		h("div.grid",
			field("Name", name, "Letters, digits and . _ - : are allowed, up to 255 characters. Use : to group names, such as chat:general."),
			field("Type", kind, "The type cannot change later.")),
		first, h("details.more", h("summary", "Advanced"), rest),
	], {
		label: "Create topic",
		action: () => actions.putTopic(name.value.trim() || "NAME", config()),
		said: ({ created, topic }) => (created ? `Created ${topic}.` : `${topic} existed already; its configuration was updated.`),
		done,
	})
}

/** A form that changes the configuration of a topic. */
export function configureTopic(state, done) {
	const made = optionsOf(state.type).map((name) => control(name, state.config[name]))
	const config = () => changed(made, state.config)
	return form([note("Only the options that you change are sent. A smaller cap or a shorter time removes records at once; readers that missed them get a tombstone."), h("div.grid", made.map((one) => one.element))], {
		label: "Save changes", action: () => actions.putTopic(state.topic, config()), said: `Changed ${state.topic}.`, done,
	})
}

/** A form that appends one record. */
export function writeRecord(state, done) {
	const { schema } = state.config
	const data = h("textarea", { rows: schema ? 14 : 6, spellcheck: false, required: true, name: "data", value: schema ? "" : '{"hello": "world"}' })
	const shaped = schema && schemaForm(schema, data)
	const tag = input({ name: "tag" })
	const node = input({ name: "node", value: "console" })
	const meta = h("textarea", { rows: 2, spellcheck: false, name: "meta", placeholder: "{}" })
	const queue = state.type === "queue"
	const priority = input({ name: "priority", inputMode: "numeric", pattern: "[0-9]" })
	const delay = input({ name: "delay_ms", placeholder: "10m" })
	const record = () => ({
		data: parse(data.value, "data"),
		tag: tag.value || undefined,
		node: node.value || undefined,
		meta: meta.value.trim() ? parse(meta.value, "meta") : undefined,
		priority: queue && priority.value ? Number(priority.value) : undefined,
		delay_ms: queue && delay.value.trim() ? parseDuration(delay.value.trim()) : undefined,
	})
	return form([
		shaped ? shaped.element : field("Data, any JSON value", data),
		h("div.grid",
			field("Tag", tag, "Optional. Groups records, to filter and delete them."),
			field("Node", node, "Optional. Names the writer."),
			queue && field("Priority", priority, "0 to 9; a higher one is delivered first. Default: 0."),
			queue && field("Delay", delay, "How long no worker can claim the job, such as 30s or 10m. Default: 0.")),
		field("Meta, a JSON object", meta, "Optional."),
	], {
		label: queue ? "Add job" : "Write record",
		action: () => actions.append(state.topic, record()),
		onError: (error) => shaped?.show(error), said: ({ first_seq: seq }) => `Written as seq ${whole(seq)}.`, done,
	})
}

function parse(text, name) {
	try {
		return Json.parse(text)
	} catch (error) {
		throw problemOf(`${name} is not valid JSON: ${error.message}. Quote strings: "text"`, "invalid_json")
	}
}

/** Ask which records to delete, by tag or before a seq, count them, and ask again. */
export function deleteRecords(state, again) {
	const match = input({ name: "match" })
	const before = input({ name: "before", inputMode: "numeric", pattern: "[0-9]*" })
	const action = (more) => actions.deleteRecords(state.topic, { match: filterOf(match.value), before_seq: before.value ? Number(before.value) : undefined, ...more })
	const answer = h("div", { role: "status" })
	formDialog("Delete records", (done) => form([
		note("Readers skip deleted records without a gap. This cannot be undone."),
		h("div.grid",
			field("Tag", match, "Exactly this tag; with * at the end, every tag that begins so."),
			field("Before seq", before, "Only records with a lower seq.")),
		answer,
	], {
		label: "Count the records", kind: "", action,
		submit: async () => {
			const { deleted } = await session.run(action({ dry_run: true }))
			if (deleted === 0) return void put(answer, note("No live record matches. Nothing would be deleted."))
			done()
			const size = count(deleted, "record")
			ask("Delete records", [h("strong", size), " would be deleted."], { label: `Delete ${size}`, action, said: (gone) => `Deleted ${count(gone.deleted, "record")}.` }, again)
		},
	}), () => {})
}

/** A form that deletes a topic once its name was typed in. */
export function dropTopic(state, done) {
	const name = input({ name: "confirm", required: true })
	const made = form([
		h("p", `This deletes ${count(state.count, "record")} and the configuration of `, h("code", state.topic), ". Routers from and to it are removed, too. It cannot be undone."),
		field(`Type ${state.topic} to confirm`, name),
	], {
		label: "Delete topic",
		kind: "danger", action: () => actions.dropTopic(state.topic), said: `Deleted ${state.topic}.`, done,
	})
	made.main.disabled = true
	name.addEventListener("input", () => (made.main.disabled = name.value !== state.topic))
	return made
}
