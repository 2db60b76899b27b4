/** Queues: all queues with their jobs by state. */

import { h, put, span, swap } from "../parts/dom.js"
import { count, rate, whole } from "../parts/format.js"
import { Rates } from "../parts/ring.js"
import { listAll, session } from "../parts/session.js"
import { table } from "../parts/table.js"
import { badge, createButton, curl, empty, liveText, livePage, loading, pageHead } from "../parts/ui.js"
import { createDialog, linkTo } from "./topics.js"

export const title = "Queues"

const IDLE_MS = 15_000

const warned = (number) => [number ? span("warn", whole(number)) : span("faint", "0"), String(number)]
const trouble = (row) => row.queue.dead_letter_error ?? (row.idle && !row.config.paused ? "no worker takes its jobs" : "")
const COLUMNS = [
  { key: "name", label: "Queue", class: "name", sort: (row) => row.topic, cell: (row) => [() => [linkTo(row.topic, "queues"), row.config.paused && badge("paused", "warn")], row.topic + row.config.paused] },
  { key: "ready", label: "Ready", class: "number", sort: (row) => row.queue.ready, cell: (row) => whole(row.queue.ready) },
  { key: "flight", label: "In flight", class: "number", sort: (row) => row.queue.in_flight, cell: (row) => whole(row.queue.in_flight) },
  { key: "delayed", label: "Delayed", class: "number medium", sort: (row) => row.queue.delayed, cell: (row) => whole(row.queue.delayed) },
  { key: "dead", label: "Dead", class: "number", sort: (row) => row.queue.dead_lettered, cell: (row) => warned(row.queue.dead_lettered) },
  { key: "done", label: "Finished", class: "number medium", sort: (row) => row.done ?? 0, cell: (row) => (row.done === null ? "–" : rate(row.done)) },
  { key: "letters", label: "Dead letters in", class: "wide", cell: (row) => row.config.dead_letter ?? (row.config.max_deliveries ? "nowhere" : "–") },
  { key: "error", label: "Problem", class: "wide", sort: trouble, cell: (row) => [() => trouble(row) && span("bad", trouble(row)), trouble(row)] },
]

export function show({ query, signal }) {
  const summary = liveText()
  const list = table({ label: "Queues", columns: COLUMNS, sortBy: "name", signal, rowKey: (row) => row.topic, class: "queues" })
  const place = h("div", loading("Loading queues"))
  const rates = new Rates()
  const waiting = new Set()

  async function refresh() {
    const rows = (await listAll("/v0/topics?details=true", "topics", { signal })).filter((row) => row.queue)
    for (const row of rows) {
      row.done = rates.note(row.topic, row.epoch, row.head_seq - row.count - row.lost)
      const waits = row.queue.ready > 0 && row.queue.in_flight === 0
      row.idle = waits && (row.done === null ? session.now() - (row.last_write_ts ?? 0) > IDLE_MS : waiting.has(row.topic) && row.done === 0)
      waiting[waits ? "add" : "delete"](row.topic)
    }
    put(summary, count(rows.length, "queue"))
    list.set(rows)
    swap(place, rows.length ? list.element : empty("No queues yet", "A queue is a topic whose records are jobs. This command creates one:",
      curl("/v0/topics/emails", { type: "queue", max_deliveries: 5, dead_letter: "emails.dead" }, "PUT")))
  }

  return livePage(pageHead("Queues", { actions: [createButton("Create queue", query, () => createDialog("queue"))] }),
    { refresh, place, signal, scopes: "admin" }, h("div.toolbar", summary), h("section.card.flush", place))
}
