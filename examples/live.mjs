// Show new records of many topics as they come.
import { Gap, Topics } from "../clients/js/topics.js"

const topics = new Topics(process.env.TOPICS_URL)

console.log("watching")
for await (const item of topics.watch(["chat-*"])) {
  console.log(item.topic, item instanceof Gap ? item.reason : item.data)
}
