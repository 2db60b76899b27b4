// Several addresses: servers of this test that answer as a writer and as a standby do.
import assert from "node:assert/strict"
import { createServer } from "node:http"
import { test } from "node:test"
import { NotWriter, ReplicaUnavailable, Topics, Unreachable } from "../../../clients/js/topics.js"

/** Start a server. `answer(path, body)` returns a status and a body. */
async function start(answer) {
  const asked = []
  const server = createServer((request, response) => {
    let text = ""
    request.on("data", (chunk) => (text += chunk))
    request.on("end", () => {
      asked.push(request.url)
      const [status, value] = answer(request.url, text ? JSON.parse(text) : null, response)
      if (status === null) return
      response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(value))
    })
  })
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve))
  const close = () => new Promise((resolve) => (server.close(resolve), server.closeAllConnections()))
  return { url: `http://127.0.0.1:${server.address().port}`, asked, close }
}

const written = (seq) => [200, { first_seq: seq, last_seq: seq, head_seq: seq, created: false, deduped: false }]
const refused = (status, code, detail) => [status, { error: { code, message: code, detail } }]

test("a write follows the standby to the writer, and reads stay there", async () => {
  const writer = await start((path) => (path === "/v0/health" ? [200, {}] : written(1)))
  const standby = await start((path) => (path === "/v0/health" ? [200, {}] : refused(421, "not_writer", { writer: writer.url })))
  for (const url of [`${standby.url}, ${writer.url}/`, standby.url]) {
    const topics = new Topics(url)
    await topics.health()
    assert.equal(await topics.append("orders", 1), 1)
    await topics.health()
  }
  assert.equal(standby.asked.filter((path) => path === "/v0/health").length, 2) // `fetch` repeats a request after 421 once itself
  assert.equal(writer.asked.length, 4)
  await writer.close()
  await assert.rejects(new Topics(standby.url, { retries: 1 }).append("orders", 1), Unreachable)
  await standby.close()
  const alone = await start(() => refused(421, "not_writer", { writer: null }))
  await assert.rejects(new Topics(alone.url).append("orders", 1), NotWriter)
  await alone.close()
})

test("a write waits for the takeover with the same key", async () => {
  const keys = new Set()
  const gone = await start(() => written(1))
  let answers = 0
  const standby = await start((path, body, response) => {
    keys.add(body.idempotency_key)
    if (++answers < 6) return refused(421, "not_writer", { writer: gone.url })
    if (answers > 7) return written(2)
    response.destroy() // the write was done, and its answer is lost
    return [null]
  })
  const topics = new Topics(`${gone.url},${standby.url}`)
  await topics.append("orders", 1)
  await gone.close()
  assert.equal(await topics.append("orders", 2), 2)
  assert.equal(keys.size, 1)
  await standby.close()
})

test("a claim that was not sent goes to another server, and one that may have happened is not repeated", async () => {
  const gone = await start(() => written(1))
  await gone.close()
  const other = await start(() => [200, { claimed: [] }])
  assert.deepEqual(await new Topics(`${gone.url},${other.url}`).claim("jobs", { node: "w", retries: 0 }), [])
  const unsure = await start(() => refused(503, "replica_unavailable", { outcome: "unknown" }))
  await assert.rejects(new Topics(`${unsure.url},${other.url}`).claim("jobs", { node: "w" }), ReplicaUnavailable)
  assert.equal(other.asked.length, 1)
  await other.close()
  await unsure.close()
})

test("every address is tried while a standby names a writer that is gone", async () => {
  const gone = await start(() => written(1))
  await gone.close()
  const standby = await start(() => refused(421, "not_writer", { writer: gone.url }))
  const writer = await start(() => written(3))
  assert.equal(await new Topics(`${gone.url},${standby.url},${writer.url}`).append("orders", 1), 3)
  await standby.close()
  await writer.close()
})

test("a map of prefixes sends each request to the server of its name", async () => {
  const answer = (path) => (path.startsWith("/v0/routers") ? [200, { router: {} }] : written(1))
  const [eu, us] = [await start(answer), await start(answer)]
  const topics = new Topics({ "eu.": eu.url, "us.": us.url })
  await topics.append("eu.orders", 1)
  await topics.append("us.orders", 1)
  assert.deepEqual([eu, us].map((server) => server.asked.map((path) => path.split("?")[0])), [["/v0/topics/eu.orders"], ["/v0/topics/us.orders"]])
  await assert.rejects(topics.append("asia.orders", 1), /no server has "asia\.orders"/)
  await assert.rejects(topics.health(), /ask it with server\(prefix\)/)
  await topics.server("us.").health()
  assert.equal(us.asked.at(-1), "/v0/health")
  await assert.rejects(topics.putRouter("eu.copy", { source: "eu.orders", dest: "us.orders" }), /on several servers/)
  await assert.rejects(topics.connect(), /belongs to one server/)
  assert.throws(() => topics.server("asia."), /no map/)
  await eu.close()
  await us.close()
})
