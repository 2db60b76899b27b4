/** The forms of a topic: create and configure, write a record, delete records, delete the topic. */

import { h, put } from "../parts/dom.js"
import { Json } from "../parts/exact.js"
import { bytes, count, duration, whole } from "../parts/format.js"
import { session, topicPath } from "../parts/session.js"
import { actions } from "../parts/snippets.js"
import { button, checkbox, failure, field, form, input, note, select, toast } from "../parts/ui.js"

const DURABILITIES = [
  ["disk", "disk: acknowledged once the operating system has it, synced soon after"],
  ["fsync", "fsync: acknowledged after it is synced to the disk"],
  ["replicated", "replicated: acknowledged after it is in the replica, too"],
  ["memory", "memory: like disk; loaded only when it is used after a restart"],
  ["ephemeral", "ephemeral: never written to the disk"],
]

/** Every option of a topic: its control, and what its default means. */
const OPTIONS = [
  ["durability", "Durability", "choice", DURABILITIES, "Default: disk. A crash of the process loses nothing; a power loss may lose the last moments, and reports them."],
  ["ttl_ms", "Time to live, ms", "number", null, "Default: 0, records never expire. Older records are removed; readers that missed them get a tombstone.", duration],
  ["cap_records", "Maximum records", "number", null, "Default: 0, no cap.", (value) => count(value, "record")],
  ["cap_bytes", "Maximum size, bytes", "number", null, "Default: 0, no cap.", bytes],
  ["discard", "When a cap is reached", "choice", [["old", "old: evict the oldest records"], ["reject", "reject: refuse new writes"]], "Default: old."],
  ["auto_create", "Created by writes", "flag", null, "Default: yes. A write to a missing topic creates it."],
  ["auto_priority", "Priority follows reads", "flag", null, "Default: yes. Without a priority of its own, a topic that was read recently is served first."],
  ["archive", "Hold for the archive", "hold", null, "Default: no. Records do not expire before a pipeline has archived them."],
  ["priority", "Priority", "number", null, "Default: none, which follows how recently the topic was read. -1000 to 1000; served first under pressure."],
  ["idempotency_window_ms", "Idempotency window, ms", "number", null, "Default: 120000. How long a repeated idempotency key is recognised.", duration],
  ["dedupe_node", "Readers may exclude nodes", "flag", null, "Default: yes. A reader that names a node does not get the records of that node."],
]
const QUEUE_OPTIONS = [
  ["lease_ms", "Lease, ms", "number", null, "Default: 30000. How long a worker holds a job before another worker gets it.", duration],
  ["max_deliveries", "Maximum deliveries", "number", null, "Default: 0, no limit. After that many, the job goes to the dead-letter topic."],
  ["dead_letter", "Dead-letter topic", "text", null, "Default: none. Where jobs go that were delivered too often."],
  ["claim_jitter_ms", "Claim jitter, ms", "number", null, "Default: 0. Gathers claims for a moment, so that workers get even shares.", duration],
  ["leases_durable", "Leases survive a restart", "flag", null, "Default: no. After a restart, held jobs are delivered again."],
]

function controls(options, current) {
  return options.map(([name, label, kind, choices, help, explain]) => {
    const value = current?.[name]
    if (kind === "flag") {
      const made = checkbox(label, value ?? /Default: yes/.test(help), help)
      return { name, element: made.element, read: () => made.control.checked }
    }
    if (kind === "hold") {
      const made = checkbox(label, value?.hold ?? false, help)
      return { name, element: made.element, read: () => (made.control.checked ? { hold: true } : null) }
    }
    if (kind === "choice") {
      const control = select(choices, value ?? choices[0][0], { name })
      return { name, element: field(label, control, help), read: () => control.value }
    }
    const control = input(kind === "number"
      ? { name, inputMode: "numeric", pattern: name === "priority" ? "-?[0-9]*" : "[0-9]*", value: value ?? "", placeholder: "default" }
      : { name, value: value ?? "", placeholder: "default" })
    const meaning = h("small", { class: "meaning" })
    const explained = () => put(meaning, explain && Number(control.value) > 0 ? `= ${explain(Number(control.value))}` : "")
    control.addEventListener("input", explained)
    explained()
    const element = field(label, control, help)
    element.insertBefore(meaning, element.lastChild)
    return { name, element, read: () => (control.value.trim() === "" ? null : kind === "number" ? Number(control.value) : control.value.trim()) }
  })
}

/** Return the options that differ from the present configuration, or from the defaults. */
function changed(made, current, type) {
  const config = current ? {} : { type }
  for (const { name, read } of made) {
    const value = read()
    const before = current ? current[name] ?? null : DEFAULTS[name]
    if (value === null && !(current && ["priority", "dead_letter", "archive"].includes(name))) continue
    if (JSON.stringify(value) !== JSON.stringify(before)) config[name] = value
  }
  return config
}

const DEFAULTS = {
  durability: "disk", ttl_ms: 0, cap_records: 0, cap_bytes: 0, discard: "old", auto_create: true, priority: null, auto_priority: true, archive: null,
  idempotency_window_ms: 120_000, dedupe_node: true, lease_ms: 30_000, max_deliveries: 0, dead_letter: null,
  claim_jitter_ms: 0, leases_durable: false,
}

/** A form that creates a topic. `done` gets its name. */
export function createTopic(done, { type = "log" } = {}) {
  const name = input({ name: "topic", required: true, maxLength: 255 })
  const kind = select([["log", "log: readers keep their own position"], ["queue", "queue: each job goes to one worker"]], type, { name: "type" })
  const common = controls(OPTIONS, null)
  const jobs = controls(QUEUE_OPTIONS, null)
  const more = h("div", { class: "grid" }, jobs.map((one) => one.element))
  const showJobs = () => (more.hidden = kind.value !== "queue")
  kind.addEventListener("change", showJobs)
  showJobs()
  const config = () => changed(kind.value === "queue" ? [...common, ...jobs] : common, null, kind.value)
  const made = form([
    h("div", { class: "grid" },
      field("Name", name, "Letters, digits and . _ - : are allowed, up to 255 characters."),
      field("Type", kind, "Default: log. The type cannot change later.")),
    h("div", { class: "grid" }, common.map((one) => one.element)), more,
  ], {
    label: "Create topic",
    action: () => actions.putTopic(name.value || "NAME", config()),
    submit: async () => {
      const answer = await session.request("PUT", `/v0/topics/${encodeURIComponent(name.value.trim())}`, config())
      toast(answer.created ? `Created ${answer.topic}.` : `${answer.topic} existed already; its configuration was updated.`)
      done(answer.topic)
    },
  })
  return made.element
}

/** A form that changes the configuration of a topic. */
export function configureTopic(state, done) {
  const made = controls(state.type === "queue" ? [...OPTIONS, ...QUEUE_OPTIONS] : OPTIONS, state.config)
  const config = () => changed(made, state.config)
  const asked = form([note("Only the options that you change are sent. A smaller cap or TTL removes records at once; readers that missed them get a tombstone."),
    h("div", { class: "grid" }, made.map((one) => one.element))], {
    label: "Save changes",
    action: () => actions.putTopic(state.topic, config()),
    submit: async () => {
      await session.request("PUT", `/v0/topics/${encodeURIComponent(state.topic)}`, config())
      toast(`Changed ${state.topic}.`)
      done()
    },
  })
  return asked.element
}

/** A form that appends one record. */
export function writeRecord(state, done) {
  const data = h("textarea", { rows: 6, spellcheck: false, required: true, name: "data", value: '{"hello": "world"}' })
  const tag = input({ name: "tag" })
  const node = input({ name: "node", value: "console" })
  const meta = h("textarea", { rows: 2, spellcheck: false, name: "meta", placeholder: "{}" })
  const queue = state.type === "queue"
  const priority = input({ name: "priority", inputMode: "numeric", pattern: "[0-9]" })
  const delay = input({ name: "delay_ms", inputMode: "numeric", pattern: "[0-9]*" })
  const record = () => ({
    data: parse(data.value, "data"),
    tag: tag.value || undefined,
    node: node.value || undefined,
    meta: meta.value.trim() ? parse(meta.value, "meta") : undefined,
    priority: queue && priority.value ? Number(priority.value) : undefined,
    delay_ms: queue && delay.value ? Number(delay.value) : undefined,
  })
  const made = form([
    field("Data, any JSON value", data),
    h("div", { class: "grid" },
      field("Tag", tag, "Optional. Groups records, to filter and delete them."),
      field("Node", node, "Optional. Names the writer."),
      queue && field("Priority", priority, "0 to 9; a higher one is delivered first. Default: 0."),
      queue && field("Delay, ms", delay, "Before the job can be claimed. Default: 0.")),
    field("Meta, a JSON object", meta, "Optional."),
  ], {
    label: queue ? "Add job" : "Write record",
    action: () => actions.append(state.topic, record()),
    submit: async () => {
      const { first_seq: seq } = await session.request("POST", topicPath(state.topic), { records: [record()] })
      toast(`Written as seq ${whole(seq)}.`)
      done(seq)
    },
  })
  return made.element
}

function parse(text, name) {
  try {
    return Json.parse(text)
  } catch (error) {
    throw Object.assign(new Error(`${name} is not valid JSON: ${error.message}. Quote strings: "text"`), { code: "invalid_json" })
  }
}

/** A form that deletes records by tag or before a seq. The first step counts them. */
export function deleteRecords(state, done) {
  const match = input({ name: "match" })
  const before = input({ name: "before", inputMode: "numeric", pattern: "[0-9]*" })
  const which = () => {
    const text = match.value.trim()
    const glob = text.endsWith("*")
    return {
      match: text ? ["tag", glob ? "Glob" : "Eq", text] : undefined,
      before_seq: before.value ? Number(before.value) : undefined,
    }
  }
  const answer = h("div", { role: "status" })
  const reset = () => put(answer)
  for (const control of [match, before]) control.addEventListener("input", reset)
  const made = form([
    note("Readers skip deleted records without a gap. This cannot be undone."),
    h("div", { class: "grid" },
      field("Tag", match, "Exactly this tag; with * at the end, every tag that begins so."),
      field("Before seq", before, "Only records with a lower seq.")),
    answer,
  ], {
    label: "Count the records",
    kind: "",
    action: () => actions.deleteRecords(state.topic, which()),
    submit: async () => {
      const found = await session.client.delete(state.topic, { ...camelMatch(which()), dryRun: true })
      if (found.deleted === 0) return void put(answer, note("No live record matches. Nothing would be deleted."))
      const go = button(`Delete ${count(found.deleted, "record")}`, async () => {
        go.disabled = true
        try {
          const gone = await session.client.delete(state.topic, camelMatch(which()))
          toast(`Deleted ${count(gone.deleted, "record")}.`)
          done()
        } catch (error) {
          put(answer, failure(error))
        }
      }, { kind: "danger" })
      put(answer, h("p", {}, h("strong", {}, count(found.deleted, "record")), " would be deleted."), go)
      go.focus()
    },
  })
  return made.element
}

function camelMatch({ match, before_seq }) {
  return { match, beforeSeq: before_seq }
}

/** A form that deletes a topic once its name was typed in. */
export function dropTopic(state, done) {
  const name = input({ name: "confirm", required: true })
  const made = form([
    h("p", {}, `This deletes ${count(state.count, "record")} and the configuration of `, h("code", {}, state.topic), ". Routers from and to it are removed, too. It cannot be undone."),
    field(`Type ${state.topic} to confirm`, name),
  ], {
    label: "Delete topic",
    kind: "danger",
    action: () => actions.dropTopic(state.topic),
    submit: async () => {
      await session.client.dropTopic(state.topic)
      toast(`Deleted ${state.topic}.`)
      done()
    },
  })
  made.send.disabled = true
  name.addEventListener("input", () => (made.send.disabled = name.value !== state.topic))
  return made.element
}
