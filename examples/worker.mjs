// Work through a queue, four jobs at a time. SIGTERM lets running jobs finish.
import { Topics } from "../clients/js/topics.js"

const topics = new Topics(process.env.TOPICS_URL)
await topics.putTopic("emails", { type: "queue", maxDeliveries: 3, deadLetter: "emails.dead" })

const stop = new AbortController()
process.once("SIGTERM", () => stop.abort())

await topics.work("emails", async (job) => {
  console.log("sending", job.data.to)
  await new Promise((resolve) => setTimeout(resolve, 1000 * (job.data.seconds ?? 0)))
}, { concurrency: 4, timeoutMs: 60_000, signal: stop.signal })
console.log("stopped")
