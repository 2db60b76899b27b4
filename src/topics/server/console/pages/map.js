/** The map: topics, queues, routers, consumers and workers as one graph, with what flows along its edges. */

import {
  count, empty, graph, h, listAll, livePage, liveText, loading, note, outline, pageHead, put, rate, Rates, Readers, readReaders, redraw, session,
  short, topicPath, whole,
} from "../parts/kit.js"
import { CURRENT_MS } from "./topic.js"
import { topicLink } from "./topics.js"

export const title = "Map"

const MOST_TOPICS = 60 // that the map shows; those with readers and writers first
const MOST_QUEUES = 12 // whose workers are looked up
const HELD = 200 // jobs of a queue that are looked at for their workers
const MOVING_MS = 60_000 // a topic without readers is shown if it was written to within this time

export function show({ signal }) {
  const summary = liveText()
  const picture = h("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Map of the system" }, loading("Loading"))
  const readers = new Readers()
  const rates = new Rates()

  async function refresh() {
    const [topics, routers, consumers] = await Promise.all([
      listAll("/v0/topics?details=true", "topics", { signal }), listAll("/v0/routers", "routers", { signal }),
      listAll("/v0/consumers", "consumers", { signal, most: 1000 }), readReaders(readers, session, signal),
    ])
    const queues = topics.filter((topic) => topic.queue?.in_flight).slice(0, MOST_QUEUES)
    const workers = await Promise.all(queues.map(async ({ topic }) => [topic, await holders(topic, signal)]))
    if (topics.length === 0) return void put(picture, empty("Nothing here yet", "Topics, routers, consumers and workers appear here as they come."))
    const found = chart(topics, routers, consumers, new Map(workers), { readers, rates })
    put(summary, `${count(found.nodes.length, "node")}, ${count(found.edges.length, "edge")}${found.hidden ? `; ${count(found.hidden, "quiet topic")} without readers not shown` : ""}`)
    const label = `Map of ${count(found.nodes.length, "node")} and ${count(found.edges.length, "edge")}`
    redraw(picture, found.nodes.length ? [graph(found.nodes, found.edges, label), outline(found.nodes, found.edges, label)] : note("Nothing moves, and nothing reads."))
    return Math.max(3000, topics.length * 5)
  }

  return livePage(pageHead("Map"), { refresh, place: picture, signal }, h("div.toolbar", summary), h("section.card", picture))
}

/** How many jobs of a queue each worker holds. */
async function holders(queue, signal) {
  const { jobs } = await session.get(topicPath(queue, `/jobs?state=in_flight&page_size=${HELD}`), signal)
  const held = new Map()
  for (const { node } of jobs) held.set(node, (held.get(node) ?? 0) + 1)
  return held
}

/** The nodes and edges of the map. */
function chart(topics, routers, consumers, workers, { readers, rates }) {
  const now = session.now()
  const edges = []
  const ends = new Map()
  const speed = (key, lag, done) => {
    readers.note(key, now, lag, done)
    return readers.trend(key)?.done
  }
  const flow = (late, lag, perSecond) => (late ? `${short(lag)} behind` : perSecond === undefined ? "" : rate(perSecond))
  for (const { router, source, dest, lag, forwarded_total: done, last_error: error } of routers) {
    const perSecond = speed(`router ${source} ${router}`, lag, done)
    const late = lag > (perSecond ?? 0) * (CURRENT_MS / 1000)
    edges.push({ from: source, to: dest, label: error ? "held up" : flow(late, lag, perSecond), kind: error ? "held" : late ? "behind" : "", title: `router ${router}: ${whole(done)} copied, ${whole(lag)} behind${error ? `, held up: ${error}` : ""}` })
  }
  for (const { topic, consumer, lag_records: lag, lag_ms: ms, seq } of consumers) {
    const id = `consumer ${topic} ${consumer}`
    const perSecond = speed(id, lag, seq)
    ends.set(id, { id, label: consumer, detail: "consumer", href: `#/consumers?search=${encodeURIComponent(consumer)}`, kind: "reader" })
    edges.push({ from: topic, to: id, label: flow(ms >= CURRENT_MS, lag, perSecond), kind: ms >= CURRENT_MS ? "behind" : "", title: `consumer ${consumer} of ${topic}: at seq ${whole(seq)}, ${whole(lag)} behind` })
  }
  for (const [queue, held] of workers) {
    for (const [node, number] of held) {
      const id = `worker ${node}`
      ends.set(id, { id, label: node, detail: "worker", kind: "reader" })
      edges.push({ from: queue, to: id, label: `holds ${whole(number)}`, title: `worker ${node} holds ${count(number, "job")} of ${queue}` })
    }
  }
  const known = new Map(topics.map((topic) => [topic.topic, topic]))
  for (const { topic, config, queue } of topics) {
    if (queue?.dead_lettered && known.has(config.dead_letter)) edges.push({ from: topic, to: config.dead_letter, label: `${short(queue.dead_lettered)} dead`, kind: "dead", title: `${count(queue.dead_lettered, "job")} of ${topic} moved to ${config.dead_letter}` })
  }
  const linked = new Set(edges.flatMap(({ from, to }) => [from, to]))
  const shown = topics.filter((row) => linked.has(row.topic) || row.queue?.ready || now - (row.last_write_ts ?? 0) < MOVING_MS)
    .sort((a, b) => linked.has(b.topic) - linked.has(a.topic) || (a.topic < b.topic ? -1 : 1)).slice(0, MOST_TOPICS)
  const rateOf = new Map(topics.map((row) => [row, rates.note(row.topic, row.epoch, row.head_seq)]))
  const nodes = shown.map((row) => {
    const perSecond = rateOf.get(row)
    const idle = row.queue?.ready > 0 && row.queue.in_flight === 0 && !(perSecond > 0) && now - (row.last_write_ts ?? 0) > 15_000
    const jobs = row.queue && `${short(row.queue.ready)} ready${idle ? ", no worker" : `, ${short(row.queue.in_flight)} held`}`
    return { id: row.topic, label: row.topic, detail: jobs ?? (perSecond === null ? count(row.count, "record") : rate(perSecond)), href: topicLink(row.topic, row.queue ? "queues" : "topics"), kind: row.queue ? `queue ${idle ? "idle" : ""}` : "" }
  })
  const all = new Set([...nodes.map(({ id }) => id), ...ends.keys()])
  return { nodes: [...nodes, ...ends.values()], edges: edges.filter(({ from, to }) => all.has(from) && all.has(to)), hidden: topics.length - shown.length }
}
