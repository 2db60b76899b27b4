/** Consumers: each named consumer with its lag in records and time, and how the lag has changed. */

import { h, put, svg } from "../parts/dom.js"
import { ago, count, duration, short, whole } from "../parts/format.js"
import { History, plot } from "../parts/plot.js"
import { listAll, poll, session } from "../parts/session.js"
import { actions } from "../parts/snippets.js"
import { table } from "../parts/table.js"
import { allowed, badge, button, card, copyAs, dialog, empty, failure, form, missingNote, pageHead, toast } from "../parts/ui.js"
import { topicLink } from "./topics.js"

export const title = "Consumers"

const COLORS = ["c1", "c2", "live", "restart", "ttl"]
const SPARK = { width: 96, height: 24 }

export function show({ signal }) {
  const problem = h("div")
  const summary = h("span", { class: "summary", role: "status" })
  const histories = new Map()
  const worst = plot("Lag in records, the five worst", { format: short, spanMs: 900_000, leastMs: 60_000 })
  const place = h("div", {}, h("p", { class: "loading" }, "Loading consumers"))
  const list = table({ label: "Consumers", columns: columns(again), sortBy: "lag", descending: true, rowKey: (row) => row.key, class: "consumers" })
  const picture = card("Lag", worst.element)
  picture.hidden = true

  async function refresh() {
    const rows = await listAll("/v0/consumers", "consumers", { signal })
    for (const row of rows) {
      row.key = `${row.topic} ${row.consumer}`
      if (!histories.has(row.key)) histories.set(row.key, new History(300))
      row.history = histories.get(row.key)
      row.history.add({ lag: row.lag_records })
    }
    put(problem)
    put(summary, count(rows.length, "consumer"))
    picture.hidden = rows.length === 0
    if (rows.length === 0) {
      if (!place.querySelector(".empty")) {
        put(place, empty("No named consumers yet", "A named consumer keeps its position on the server. This command reads as one, and a second call commits what the first one returned:",
          `curl ${location.origin}/v0/topics/orders/diff -H 'content-type: application/json' -d '{"consumer":"billing","commit":true}'`))
      }
      return
    }
    if (list.element.parentNode !== place) put(place, list.element)
    list.set(rows)
    const top = [...rows].sort((a, b) => b.lag_records - a.lag_records).slice(0, COLORS.length)
    const longest = top.reduce((most, row) => (row.history.times.length > most.length ? row.history.times : most), [])
    worst.set(longest, top.map((row, at) => ({
      name: `${row.consumer} on ${row.topic}`, color: COLORS[at],
      values: [...Array(longest.length - row.history.times.length).fill(0), ...row.history.values.lag],
    })))
  }

  async function again() {
    await refresh()
  }

  const refused = missingNote("read")
  if (refused) put(place)
  else {
    const schedule = { everyMs: 3000, signal, onError: (error) => put(problem, failure(error)) }
    poll(async () => {
      await refresh()
      schedule.everyMs = Math.max(3000, histories.size * 5)
    }, schedule)
  }
  return [
    pageHead("Consumers", { actions: [copyAs(actions.consumers)] }),
    refused ?? missingNote("delete"), problem, picture,
    h("div", { class: "toolbar" }, summary), h("section", { class: "card flush" }, place),
  ]
}

function columns(again) {
  const warned = (value, text) => [value ? h("span", { class: "warn" }, text) : h("span", { class: "faint" }, text), text]
  return [
    { key: "consumer", label: "Consumer", class: "name", sort: (row) => row.consumer, cell: (row) => [() => [row.consumer, row.hold ? badge("holds records") : null], row.consumer + row.hold] },
    { key: "topic", label: "Topic", sort: (row) => row.topic, cell: (row) => [() => h("a", { href: topicLink(row.topic) }, row.topic), row.topic] },
    { key: "seq", label: "Position", class: "number wide", down: true, sort: (row) => row.seq, cell: (row) => `${whole(row.seq)} of ${whole(row.head_seq)}` },
    { key: "lag", label: "Behind", class: "number", down: true, sort: (row) => row.lag_records, cell: (row) => warned(row.lag_records, short(row.lag_records)) },
    { key: "time", label: "For", class: "number medium", down: true, sort: (row) => row.lag_ms, cell: (row) => (row.lag_ms ? duration(row.lag_ms) : "–") },
    { key: "plot", label: "Trend", class: "wide", cell: (row) => [spark(row.history.values.lag), `${row.history.times.at(-1)}`] },
    { key: "lost", label: "Lost unread", class: "number medium", down: true, sort: (row) => row.lost?.records ?? 0, cell: (row) => warned(row.lost?.records ?? 0, short(row.lost?.records ?? 0)) },
    { key: "updated", label: "Committed", class: "number wide", down: true, sort: (row) => row.updated_ms, cell: (row) => ago(row.updated_ms, session.now()) },
    {
      key: "act", label: "Actions", class: "row-actions wide",
      cell: (row) => [() => allowed("delete", row.topic, () => button("Delete", () => dialog("Delete the consumer", (close) => drop(row, () => {
        close()
        void again()
      })), { kind: "small danger", "aria-label": `Delete ${row.consumer} of ${row.topic}` })), "delete"],
    },
  ]
}

/** A small line of the values so far. */
function spark(values) {
  const most = Math.max(1, ...values)
  const step = SPARK.width / Math.max(values.length - 1, 1)
  const points = values.map((value, at) => `${(at * step).toFixed(1)} ${(SPARK.height - 2 - (value / most) * (SPARK.height - 4)).toFixed(1)}`)
  return svg("svg", { class: "spark", viewBox: `0 0 ${SPARK.width} ${SPARK.height}`, width: SPARK.width, height: SPARK.height, "aria-hidden": "true" },
    svg("path", { class: "stroke c1", d: `M${points.join("L")}${points.length === 1 ? `h${SPARK.width}` : ""}` }))
}

function drop(row, done) {
  return form([h("p", {}, "The position of ", h("code", {}, row.consumer), " on ", h("code", {}, row.topic), " is forgotten, and records that it holds may be evicted. A reader with this name begins again.")], {
    label: "Delete consumer", kind: "danger", action: () => actions.dropConsumer(row.topic, row.consumer),
    submit: async () => {
      await session.request("DELETE", `/v0/topics/${encodeURIComponent(row.topic)}/consumers/${encodeURIComponent(row.consumer)}`)
      toast(`Deleted ${row.consumer}.`)
      done()
    },
  }).element
}
