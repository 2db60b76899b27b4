// Compiled, not run: the types of the client fit how it is used.
import { FileCursor, Gap, Job, ServerCursor, Topics, TopicNotFound, type Position, type Cursor } from "../../../clients/js/topics.js"

const topics = new Topics("http://127.0.0.1:4000", { token: "key", retries: 3 })
const seq: number = await topics.append("orders", { sku: "V60" }, { tag: "order-7", meta: { source: "till" } })
const { firstSeq, deduped } = await topics.appendMany("orders", [{ data: 1 }, { data: [2], tag: "b" }])
const cursor: Cursor<Position> = new FileCursor("orders.cursor")

for await (const item of topics.follow("orders", { cursor, includeTags: true, onCaughtUp: () => console.log("at the head") })) {
  if (item instanceof Gap) console.warn(item.firstSeq, item.lastSeq, item.reason)
  else console.log(item.seq, item.tag?.length, item.data)
}
for await (const item of topics.follow("orders", { cursor: new ServerCursor("billing", { expireMs: 60_000 }) })) console.log(item.topic)
for await (const job of topics.jobs("emails", { leaseMs: 5_000 })) console.log(job.data, job.deliveries)
const { lag_records, lost } = await topics.consumer("orders", "billing")
const { head_seq, config } = await topics.topic("orders")
console.log(lag_records, lost?.gaps[0]?.reason, head_seq, config.durability)
for await (const item of topics.watch({ orders: { tail: true }, "chat-*": {} })) console.log(item.topic)
await topics.work("emails", async (job: Job, signal: AbortSignal) => { await fetch(job.data.url, { signal }) }, { concurrency: 8 })
try {
  await topics.topic("nowhere")
} catch (error) {
  if (error instanceof TopicNotFound) console.log(error.code, error.status, error.retryable, seq, firstSeq, deduped)
}
// @ts-expect-error: a typing error is noticed
await topics.putTopic("orders", { durability: "forever" })
// @ts-expect-error: an option of another method
await topics.append("orders", 1, { fromSeq: 1 })
