/** Topics: a live table of all topics with search, and a form that creates one. */

import { h, put, span, swap } from "../parts/dom.js"
import { ago, bytes, count, duration, rate, short, whole } from "../parts/format.js"
import { Rates } from "../parts/ring.js"
import { setQuery } from "../parts/route.js"
import { listAll, session } from "../parts/session.js"
import { actions } from "../parts/snippets.js"
import { table } from "../parts/table.js"
import { badge, copyAs, createButton, empty, formDialog, liveText, livePage, loading, noTopics, pageHead, searchField } from "../parts/ui.js"
import { createTopic } from "./topic-forms.js"

export const title = "Topics"

const PER_SECOND = 1 / 200 // a list of 5,000 topics is read every 25 seconds

const QUIET_MS = 10_000 // a topic without a write for so long has no rate

export const topicLink = (name, page = "topics") => `#/${page}/${encodeURIComponent(name)}`

/** A link to the page of a topic. */
export const linkTo = (name, page) => h("a", { href: topicLink(name, page) }, name)

/** How long a topic keeps its records, in a few words. */
export function retention({ ttl_ms, cap_records, cap_bytes, discard }) {
  const parts = []
  if (ttl_ms) parts.push(duration(ttl_ms))
  if (cap_records) parts.push(cap_records < 1000 ? count(cap_records, "record") : `${short(cap_records)} records`)
  if (cap_bytes) parts.push(bytes(cap_bytes))
  if (parts.length === 0) return "everything"
  return parts.join(", ") + (discard === "reject" ? ", then rejects" : "")
}

const COLUMNS = [
  {
    key: "name", label: "Topic", class: "name", sort: (row) => row.topic,
    cell: (row) => [() => [linkTo(row.topic), row.type === "queue" ? badge("queue") : null], row.topic],
  },
  { key: "head", label: "Head", class: "number wide", sort: (row) => row.head_seq, cell: (row) => whole(row.head_seq) },
  { key: "count", label: "Records", class: "number", sort: (row) => row.count, cell: (row) => whole(row.count) },
  { key: "bytes", label: "Size", class: "number medium", sort: (row) => row.bytes, cell: (row) => bytes(row.bytes) },
  { key: "rate", label: "Rate", class: "number", sort: (row) => row.rate ?? 0, cell: (row) => (row.rate === null ? "–" : rate(row.rate)) },
  { key: "lost", label: "Lost", class: "number medium", sort: (row) => row.lost, cell: (row) => [row.lost ? span("warn", short(row.lost)) : span("faint", "0"), String(row.lost)] },
  { key: "durability", label: "Durability", class: "wide", sort: (row) => row.config.durability, cell: (row) => row.config.durability },
  { key: "retention", label: "Keeps", class: "wide", cell: (row) => retention(row.config) },
  { key: "write", label: "Last write", class: "number wide", sort: (row) => row.last_write_ts ?? 0, cell: (row) => ago(row.last_write_ts) },
]

/** Ask for a new topic or queue, and go to it. */
export function createDialog(type) {
  formDialog(`Create a ${type === "queue" ? "queue" : "topic"}`, (done) => createTopic(done, { type }), (name, kind) => (location.hash = topicLink(name, kind === "queue" ? "queues" : "topics")))
}

export function show({ query, signal }) {
  const search = searchField("topics", query.get("search"), filter)
  const summary = liveText()
  const sort = query.get("sort") ?? "name"
  const list = table({ label: "Topics", columns: COLUMNS, sortBy: sort.replace("-", ""), descending: sort.startsWith("-"), onSort: (key) => setQuery({ sort: key === "name" ? null : key }), signal, rowKey: (row) => row.topic, class: "topics" })
  const place = h("div", loading("Loading topics"))
  const rates = new Rates()
  let all = null

  async function refresh() {
    const rows = await listAll("/v0/topics?details=true", "topics", { signal })
    for (const row of rows) row.rate = rates.note(row.topic, row.epoch, row.head_seq) ?? (session.now() - (row.last_write_ts ?? 0) > QUIET_MS ? 0 : null)
    all = rows
    filter()
    return Math.max(3000, all.length * PER_SECOND * 1000)
  }

  function filter() {
    if (all === null) return
    const wanted = search.value.trim().toLowerCase()
    const rows = wanted ? all.filter((row) => row.topic.toLowerCase().includes(wanted)) : all
    put(summary, wanted ? `${whole(rows.length)} of ${count(all.length, "topic")}` : count(all.length, "topic"))
    list.set(rows)
    swap(place, rows.length ? list.element : all.length ? empty("No topic matches", `No name contains "${search.value.trim()}".`) : noTopics())
  }

  return livePage(pageHead("Topics", { actions: [copyAs(actions.listTopics), createButton("Create topic", query, () => createDialog("log"))] }),
    { refresh, place, signal, scopes: "admin" }, h("div.toolbar", search, summary), h("section.card.flush", place))
}
