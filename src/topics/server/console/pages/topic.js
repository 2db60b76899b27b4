/** One topic: its figures, the loss timeline, its records, and its configuration. */

import { h, put } from "../parts/dom.js"
import { ago, bytes, count, duration, rate, short, whole } from "../parts/format.js"
import { records } from "../parts/records.js"
import { listAll, poll, session, topicPath } from "../parts/session.js"
import { actions } from "../parts/snippets.js"
import { timeline } from "../parts/timeline.js"
import { allowed, badge, button, card, copyAs, dialog, failure, missingNote, pageHead, stat, stats } from "../parts/ui.js"
import { configureTopic, deleteRecords, dropTopic, writeRecord } from "./topic-forms.js"
import { retention } from "./topics.js"

export const title = ({ params }) => params[0]

export function show({ params: [name], query, signal }) {
  let state = null
  let before = null
  const problem = h("div")
  const badges = h("span", { class: "badges" })
  const figures = {
    head: stat("Head", "–", { title: "The seq of the last record" }),
    count: stat("Live records"),
    bytes: stat("Size"),
    rate: stat("Rate"),
    lost: stat("Lost", "–", { title: "Seqs that a cap, a TTL or damage removed" }),
    deleted: stat("Deleted", "–", { title: "Seqs that a client deleted: readers skip them without a gap" }),
    write: stat("Last write"),
    keeps: stat("Keeps"),
  }
  const line = timeline(name, { signal, onPick: (seq) => list.jump(seq) })
  const list = records(name, { signal, query, state: () => state })
  const settings = h("div")
  const jobs = h("a", { class: "button", href: `#/queues/${encodeURIComponent(name)}`, hidden: true }, "Jobs")
  const again = async () => {
    await refresh()
    list.again()
  }

  async function refresh() {
    const now = performance.now()
    const [seen, lost] = await Promise.all([
      session.request("GET", topicPath(name, "?touch=false"), undefined, { signal }),
      line.refresh(),
    ])
    const perSecond = before && before.epoch === seen.epoch ? Math.max(seen.head_seq - before.head, 0) / ((now - before.at) / 1000) : null
    before = { head: seen.head_seq, at: now, epoch: seen.epoch }
    state = seen
    jobs.hidden = seen.type !== "queue"
    put(problem)
    put(badges, badge(seen.type), badge(seen.config.durability))
    figures.head.set(whole(seen.head_seq))
    figures.count.set(whole(seen.count))
    figures.bytes.set(bytes(seen.bytes))
    figures.rate.set(perSecond === null ? "–" : rate(perSecond))
    figures.lost.set(short(lost.lost), "", lost.lost ? "warn" : "")
    figures.deleted.set(short(lost.deleted))
    figures.write.set(ago(seen.last_write_ts))
    figures.keeps.set(retention(seen.config))
    describe(settings, seen)
    list.refresh()
  }

  async function mark() {
    const [routers, consumers] = await Promise.all([
      listAll(`/v0/routers?source=${encodeURIComponent(name)}`, "routers", { signal, most: 200 }),
      listAll(topicPath(name, "/consumers"), "consumers", { signal, most: 200 }),
    ])
    line.mark([
      ...routers.map((router) => ({
        seq: router.cursor, label: router.router, above: true, kind: "router",
        detail: `router to ${router.dest}, ${count(router.lag, "record")} behind`,
      })),
      ...consumers.map(({ seq, consumer, lag_records, lag_ms, lost }) => ({
        seq, label: consumer, kind: "consumer",
        detail: `consumer, ${count(lag_records, "record")} behind${lag_ms ? `, the oldest for ${duration(lag_ms)}` : ""}${lost ? `; ${count(lost.records, "record")} lost before it was read` : ""}`,
      })),
    ])
  }

  const open = (heading, make) => () => state && dialog(heading, (close) => make(state, () => {
    close()
    void again()
  }))
  const refused = missingNote("read", name)
  if (!refused) {
    const onError = (error) => put(problem, failure(error))
    poll(refresh, { everyMs: 3000, signal, onError })
    poll(mark, { everyMs: 3000, signal, onError })
  }
  return [
    pageHead(name, {
      crumbs: [["Topics", "#/topics"]], badges: [badges],
      actions: [
        copyAs(() => actions.topic(name)),
        jobs,
        allowed("write", name, () => button("Write record", open("Write a record", writeRecord), { kind: "primary" })),
        allowed("delete", name, () => button("Delete records", open("Delete records", deleteRecords))),
        allowed("admin", name, () => button("Configure", open("Configure the topic", configureTopic))),
        allowed("delete", name, () => button("Delete topic", () => state && dialog("Delete the topic", (close) => dropTopic(state, () => {
          close()
          location.hash = "#/topics"
        })), { kind: "danger" })),
      ],
    }),
    refused ?? missingNote("write delete admin", name), problem,
    !refused && [
      stats(...Object.values(figures)),
      card("Timeline", line.element),
      card("Records", list.element),
      card("Configuration", settings),
    ],
  ]
}

function describe(place, state) {
  const rows = Object.entries(state.config).map(([option, value]) => [option, value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value)])
  const text = rows.map((row) => row.join(" ")).join("\n") + state.epoch
  if (place.dataset.shown === text) return
  place.dataset.shown = text
  put(place, h("dl", { class: "facts columns" }, [["epoch", String(state.epoch)], ...rows].map(([option, value]) => [h("dt", {}, option), h("dd", {}, value)])))
}
