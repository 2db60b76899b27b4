/** Queues: all queues with their jobs by state. */

import { badge, createButton, curl, empty, listAll, rate, Rates, session, span, tablePage, warned, whole } from "../parts/kit.js"
import { createDialog, linkTo } from "./topics.js"

export const title = "Queues"

const IDLE_MS = 15_000

const trouble = (row) => row.queue.dead_letter_error ?? (row.idle && !row.config.paused ? "no worker takes its jobs" : "")
const COLUMNS = [
  { key: "name", label: "Queue", class: "name", sort: (row) => row.topic, cell: (row) => [linkTo(row.topic, "queues"), row.config.paused && badge("paused", "warn")] },
  { key: "ready", label: "Ready", class: "number", sort: (row) => row.queue.ready, print: whole },
  { key: "flight", label: "In flight", class: "number", sort: (row) => row.queue.in_flight, print: whole },
  { key: "delayed", label: "Delayed", class: "number medium", sort: (row) => row.queue.delayed, print: whole },
  { key: "dead", label: "Dead", class: "number", sort: (row) => row.queue.dead_lettered, print: warned },
  { key: "done", label: "Finished", class: "number medium", sort: (row) => row.done ?? 0, cell: (row) => (row.done === null ? "–" : rate(row.done)) },
  { key: "letters", label: "Dead letters in", class: "wide", cell: (row) => row.config.dead_letter ?? (row.config.max_deliveries ? "nowhere" : "–") },
  { key: "error", label: "Problem", class: "wide", sort: trouble, print: (text) => span("bad", text) },
]

export function show({ query, signal }) {
  const rates = new Rates()
  const waiting = new Set()

  async function load() {
    const rows = (await listAll("/v0/topics?details=true", "topics", { signal })).filter((row) => row.queue)
    for (const row of rows) {
      row.done = rates.note(row.topic, row.epoch, row.head_seq - row.count - row.lost)
      const waits = row.queue.ready > 0 && row.queue.in_flight === 0
      row.idle = waits && (row.done === null ? session.now() - (row.last_write_ts ?? 0) > IDLE_MS : waiting.has(row.topic) && row.done === 0)
      waiting[waits ? "add" : "delete"](row.topic)
    }
    return rows
  }

  const blank = () => empty("No queues yet", "A queue is a topic whose records are jobs. This command creates one:",
    curl("/v0/topics/emails", { type: "queue", max_deliveries: 5, dead_letter: "emails.dead" }, "PUT"))
  return tablePage("Queues", {
    noun: "queue", columns: COLUMNS, sortBy: "name", nameOf: (row) => row.topic, blank, load, scopes: "admin", query, signal,
    actions: [createButton("Create queue", query, () => createDialog("queue"))],
  })
}
