/** Topics: a live table of all topics with search, and a form that creates one. */

import {
  actions, ago, badge, bytes, copyAs, count, createButton, duration, formDialog, h, listAll, noTopics, rate, Rates, session, short, tablePage, warned,
  whole,
} from "../parts/kit.js"
import { createTopic } from "./topic-forms.js"

export const title = "Topics"

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
    cell: (row) => [linkTo(row.topic), row.type === "queue" && badge("queue")],
  },
  { key: "head", label: "Head", class: "number wide", sort: (row) => row.head_seq, print: whole },
  { key: "count", label: "Records", class: "number", sort: (row) => row.count, print: whole },
  { key: "bytes", label: "Size", class: "number medium", sort: (row) => row.bytes, print: bytes },
  { key: "rate", label: "Rate", class: "number", sort: (row) => row.rate ?? 0, cell: (row) => (row.rate === null ? "–" : rate(row.rate)) },
  { key: "lost", label: "Lost", class: "number medium", sort: (row) => row.lost, print: warned },
  { key: "durability", label: "Durability", class: "wide", sort: (row) => row.config.durability },
  { key: "retention", label: "Keeps", class: "wide", cell: (row) => retention(row.config) },
  { key: "write", label: "Last write", class: "number wide", sort: (row) => row.last_write_ts ?? 0, cell: (row) => ago(row.last_write_ts) },
]

/** Ask for a new topic or queue, and go to it. */
export function createDialog(type) {
  formDialog(`Create a ${type === "queue" ? "queue" : "topic"}`, (done) => createTopic(done, { type }), (name, kind) => (location.hash = topicLink(name, kind === "queue" ? "queues" : "topics")))
}

export function show({ query, signal }) {
  const rates = new Rates()

  async function load() {
    const rows = await listAll("/v0/topics?details=true", "topics", { signal })
    for (const row of rows) row.rate = rates.note(row.topic, row.epoch, row.head_seq) ?? (session.now() - (row.last_write_ts ?? 0) > QUIET_MS ? 0 : null)
    return rows
  }

  return tablePage("Topics", {
    noun: "topic", columns: COLUMNS, sortBy: "name", nameOf: (row) => row.topic, blank: noTopics, load, scopes: "admin", query, signal,
    actions: [copyAs(actions.listTopics), createButton("Create topic", query, () => createDialog("log"))],
  })
}
