// Read lines from standard input and write each as a record. A retry never writes a record twice.
import { createInterface } from "node:readline"
import { Topics } from "../clients/js/topics.js"

const topics = new Topics(process.env.TOPICS_URL)

for await (const line of createInterface({ input: process.stdin })) {
  console.log("wrote", await topics.append("lines", line))
}
