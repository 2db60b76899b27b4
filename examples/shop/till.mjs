// Take an order: node till.mjs NUMBER SKU QUANTITY EMAIL
import { Topics } from "./topics.mjs"

const [number, sku, quantity, email] = process.argv.slice(2)
const order = { sku, qty: Number(quantity), email }

const topics = new Topics(process.env.TOPICS_URL ?? "http://127.0.0.1:4000")
const seq = await topics.append("orders", order, { tag: `order-${number}`, idempotencyKey: `order-${number}` })
console.log(`order ${number} is record ${seq}`)
