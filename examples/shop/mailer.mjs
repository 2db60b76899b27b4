// Send an e-mail for each job of the queue `emails`. SIGTERM lets running jobs finish.
import { existsSync } from "node:fs"
import { Topics } from "./topics.mjs"

const topics = new Topics(process.env.TOPICS_URL ?? "http://127.0.0.1:4000")
const stop = new AbortController()
process.once("SIGTERM", () => stop.abort())

async function send(job) {
  if (existsSync("mail-server-is-down")) throw new Error("the mail server is down")
  const text = `thank you for ${job.data.qty} x ${job.data.sku}`
  await topics.append("sent", { to: job.data.email, text }, { idempotencyKey: `email-${job.seq}` })
}

const retryDelayMs = (deliveries) => 200 * deliveries
await topics.work("emails", send, { concurrency: 4, retryDelayMs, signal: stop.signal })
