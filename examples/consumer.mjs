// Print the records of a topic, from where the program stopped last time, and report what was lost.
import { FileCursor, Gap, Topics } from "../clients/js/topics.js"

const topics = new Topics(process.env.TOPICS_URL)

for await (const item of topics.follow("lines", { cursor: new FileCursor("lines.cursor"), waitForTopic: true })) {
  if (item instanceof Gap) console.log(`lost ${item.firstSeq} to ${item.lastSeq}: ${item.reason}`)
  else console.log(item.seq, item.data)
}
