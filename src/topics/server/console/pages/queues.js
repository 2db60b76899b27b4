/** Queues: all queues with their jobs by state. */

import { h, put } from "../parts/dom.js"
import { count, rate, whole } from "../parts/format.js"
import { listAll, poll } from "../parts/session.js"
import { table } from "../parts/table.js"
import { allowed, button, dialog, empty, failure, missingNote, pageHead } from "../parts/ui.js"
import { createTopic } from "./topic-forms.js"
import { topicLink } from "./topics.js"

export const title = "Queues"

const warned = (number) => [number ? h("span", { class: "warn" }, whole(number)) : h("span", { class: "faint" }, "0"), String(number)]
const COLUMNS = [
  { key: "name", label: "Queue", class: "name", sort: (row) => row.topic, cell: (row) => [() => h("a", { href: topicLink(row.topic, "queues") }, row.topic), row.topic] },
  { key: "ready", label: "Ready", class: "number", down: true, sort: (row) => row.queue.ready, cell: (row) => whole(row.queue.ready) },
  { key: "flight", label: "In flight", class: "number", down: true, sort: (row) => row.queue.in_flight, cell: (row) => whole(row.queue.in_flight) },
  { key: "delayed", label: "Delayed", class: "number medium", down: true, sort: (row) => row.queue.delayed, cell: (row) => whole(row.queue.delayed) },
  { key: "dead", label: "Dead", class: "number", down: true, sort: (row) => row.queue.dead_lettered, cell: (row) => warned(row.queue.dead_lettered) },
  { key: "done", label: "Finished", class: "number medium", down: true, sort: (row) => row.done ?? 0, cell: (row) => (row.done === null ? "–" : rate(row.done)) },
  { key: "letters", label: "Dead letters go to", class: "wide", cell: (row) => row.config.dead_letter ?? (row.config.max_deliveries ? "nowhere" : "–") },
  { key: "error", label: "Problem", class: "wide", cell: (row) => [row.queue.dead_letter_error ? h("span", { class: "bad" }, row.queue.dead_letter_error) : "", row.queue.dead_letter_error ?? ""] },
]

export function show({ signal }) {
  const problem = h("div")
  const summary = h("span", { class: "summary", role: "status" })
  const list = table({ label: "Queues", columns: COLUMNS, sortBy: "name", rowKey: (row) => row.topic, class: "queues" })
  const place = h("div", {}, h("p", { class: "loading" }, "Loading queues"))
  const before = new Map()

  async function refresh() {
    const rows = (await listAll("/v0/topics?details=true", "topics", { signal })).filter((row) => row.queue)
    const now = performance.now()
    for (const row of rows) {
      const last = before.get(row.topic)
      const finished = row.head_seq - row.count - row.lost
      row.done = last && last.epoch === row.epoch ? Math.max(finished - last.finished, 0) / ((now - last.at) / 1000) : null
      before.set(row.topic, { finished, at: now, epoch: row.epoch })
    }
    put(problem)
    put(summary, count(rows.length, "queue"))
    if (rows.length === 0) {
      if (!place.querySelector(".empty")) {
        put(place, empty("No queues yet", "A queue is a topic whose records are jobs. This command creates one:",
          `curl -X PUT ${location.origin}/v0/topics/emails -H 'content-type: application/json' -d '{"type":"queue","max_deliveries":5,"dead_letter":"emails.dead"}'`))
      }
      return
    }
    if (list.element.parentNode !== place) put(place, list.element)
    list.set(rows)
  }

  const refused = missingNote("read")
  if (refused) put(place)
  else poll(refresh, { everyMs: 3000, signal, onError: (error) => put(problem, failure(error)) })
  return [
    pageHead("Queues", {
      actions: [allowed("admin", null, () => button("Create queue", () => dialog("Create a queue", (close) => createTopic((name) => {
        close()
        location.hash = topicLink(name, "queues")
      }, { type: "queue" })), { kind: "primary" }))],
    }),
    refused ?? missingNote("admin"), problem, h("div", { class: "toolbar" }, summary),
    h("section", { class: "card flush" }, place),
  ]
}
