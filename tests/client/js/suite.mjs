// Every verb of the JavaScript client against a real server: node suite.mjs URL
import assert from "node:assert/strict"
import { test } from "node:test"
import * as client from "../../../clients/js/topics.js"

const { Topics, Gap, TopicRecord, FileCursor, StorageCursor } = client
const url = process.env.TOPICS_URL
const topics = new Topics(url)
let number = 0
const name = () => `js${process.pid}.${++number}`

async function take(items, count) {
  const found = []
  for await (const item of items) {
    found.push(item)
    if (found.length === count) break
  }
  return found
}

/** Wait until the server has a later deadline for a job than the one that it was claimed with. */
async function untilExtended(queue, job) {
  const claimedUntil = job.deadline
  for (;;) {
    for await (const listed of topics.listJobs(queue, { state: "in_flight" })) {
      if (listed.$seq === job.seq && listed.deadline > claimedUntil) return
    }
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

test("append returns seqs and read returns records", async () => {
  const topic = name()
  assert.equal(await topics.append(topic, { sku: "V60" }, { tag: "a", node: "till", meta: { k: 1 } }), 1)
  const more = await topics.appendMany(topic, [{ data: 2 }, { data: null, tag: "b" }])
  assert.deepEqual([more.firstSeq, more.lastSeq, more.created], [2, 3, false])
  const records = await take(topics.read(topic), 3)
  assert.deepEqual(records.map((r) => [r.seq, r.tag, r.data]), [[1, "a", { sku: "V60" }], [2, undefined, 2], [3, "b", null]])
  assert.deepEqual([records[0].node, records[0].meta], ["till", { k: 1 }])
})

test("a parser of the caller reads answers, lines, events and messages", async () => {
  const topic = name()
  const seen = []
  const parsing = new Topics(url, { parse: (text) => (seen.push(text), JSON.parse(text)), WebSocket: globalThis.WebSocket })
  await parsing.append(topic, 1)
  assert.match(seen.pop(), /first_seq/)
  await take(parsing.scan(topic), 1)
  assert.match(seen[0], /"data":1/)
  seen.length = 0
  await take(parsing.follow(topic), 1)
  assert.ok(seen.some((text) => text.includes('"records"')))
  seen.length = 0
  const socket = await parsing.connect()
  await socket.subscribe(topic, { fromSeq: 0 })
  await take(socket, 1)
  assert.ok(seen.some((text) => text.includes('"data":1')))
  socket.close()
})

test("an option that a method does not have is an error", async () => {
  const topic = name()
  const says = (message) => (error) => error instanceof TypeError && error.message === message
  await assert.rejects(topics.append(topic, 1, { idempotency: "k" }), says('append: there is no option "idempotency"; did you mean "idempotencyKey"?'))
  await assert.rejects(topics.diff(topic, { from_seq: 1 }), says('diff: there is no option "from_seq"; did you mean "fromSeq"?'))
  await assert.rejects(topics.follow(topic, { flter: "a" }).next(), says('follow: there is no option "flter"; did you mean "filter"?'))
  await assert.rejects(topics.watch({ [topic]: { from: 1 } }).next(), says('a topic of watch: there is no option "from"; did you mean "fromSeq"?'))
  assert.throws(() => topics.topics({ start: 1 }), says('topics: there is no option "start"; the options are prefix, pageSize'))
  assert.throws(() => new Topics(url, { timeout: 5 }), says('new Topics: there is no option "timeout"; did you mean "timeoutMs"?'))
  assert.throws(() => new client.ServerCursor("a", { expire: 5 }), says('new ServerCursor: there is no option "expire"; did you mean "expireMs"?'))
  const bad = { noSuchThing: 1 }
  const socket = globalThis.WebSocket ? await topics.connect() : null
  const calls = [
    () => topics.putTopic(topic, bad), () => topics.topic(topic, bad), () => topics.dropTopic(topic, bad), () => topics.appendMany(topic, [], bad),
    () => topics.appendMany(topic, [{ data: 1, ...bad }]), () => topics.append(topic, 1, { config: bad }), () => topics.read(topic, bad).next(),
    () => topics.scan(topic, bad).next(), () => topics.delete(topic, bad), () => topics.timeline(topic, bad), () => topics.reportArchived(topic, bad),
    () => topics.putConsumer(topic, "a", bad), () => topics.commit([bad]), () => topics.consumer(topic, "a", bad), async () => topics.consumers(topic, bad),
    () => topics.watch([topic], bad).next(), () => topics.claim(topic, bad), () => topics.ack(topic, bad), () => topics.nack(topic, bad),
    () => topics.extend(topic, bad), async () => topics.listJobs(topic, bad), () => topics.redrive(topic, bad), () => topics.jobs(topic, bad).next(),
    () => topics.pushedJobs(topic, bad).next(), () => topics.work(topic, () => {}, bad), () => topics.putRouter("a", bad),
    async () => topics.routers(bad), () => topics.previewRouter("a", bad), () => topics.putSchedule("a", bad),
    () => topics.putSchedule("a", { topic: "a", record: { data: 1, ...bad } }), async () => topics.schedules(bad), () => topics.previewSchedule("a", bad),
    () => topics.samples(bad), () => topics.connect(bad),
    ...(socket ? [() => socket.publish(topic, [], bad), () => socket.subscribe(topic, bad), () => socket.commit(topic, 1, bad)] : []),
  ]
  for (const call of calls) await assert.rejects(call, /there is no option "noSuchThing"; the options are/, String(call))
  socket?.close()
})

test("a topic that an append has created is reported once", async (context) => {
  const warn = context.mock.method(console, "warn", () => {})
  const topic = name()
  for (const n of [1, 2, 3]) await topics.append(topic, n)
  assert.deepEqual(warn.mock.calls.map((call) => call.arguments[0].includes(topic)), [true])
})

test("the same key appends once", async () => {
  const topic = name()
  await topics.appendMany(topic, [{ data: 1 }], { idempotencyKey: "k" })
  assert.equal((await topics.appendMany(topic, [{ data: 1 }], { idempotencyKey: "k" })).deduped, true)
})

test("lost records come as a gap", async () => {
  const topic = name()
  await topics.putTopic(topic, { capRecords: 2 })
  await topics.appendMany(topic, [1, 2, 3, 4, 5].map((data) => ({ data })))
  const [gap, ...records] = await take(topics.read(topic), 3)
  assert.ok(gap instanceof Gap)
  assert.deepEqual([gap.firstSeq, gap.lastSeq, gap.reason], [1, 3, "cap"])
  assert.deepEqual(records.map((r) => r.data), [4, 5])
})

test("each code is its own class", async () => {
  await assert.rejects(topics.topic(name()), (error) => {
    assert.ok(error instanceof client.TopicNotFound)
    assert.deepEqual([error.code, error.status, error.retryable], ["topic_not_found", 404, false])
    return true
  })
  await assert.rejects(topics.router(name()), client.RouterNotFound)
  await assert.rejects(topics.schedule(name()), client.ScheduleNotFound)
  await assert.rejects(topics.putTopic(name(), { capRecords: -1 }), client.InvalidRequest)
  const nowhere = new Topics("http://127.0.0.1:9", { retries: 0 })
  await assert.rejects(nowhere.health(), client.Unreachable)
  assert.equal(await nowhere.isReady(), false)
  assert.throws(() => new Topics("nowhere"), client.BadUrl)
  assert.equal((await new Topics().health()).status, "ok") // TOPICS_URL names the server of the tests
})

test("follow resumes from its cursor", async () => {
  const topic = name()
  const kept = new Map()
  const storage = { getItem: (key) => kept.get(key) ?? null, setItem: (key, value) => kept.set(key, value) }
  const cursor = new StorageCursor("place", storage)
  await topics.appendMany(topic, [1, 2, 3].map((data) => ({ data })))
  assert.deepEqual((await take(topics.follow(topic, { cursor }), 3)).map((r) => r.data), [1, 2, 3])
  await topics.append(topic, 4)
  // The first batch was never finished: it comes again.
  assert.deepEqual((await take(topics.follow(topic, { cursor }), 4)).map((r) => r.data), [1, 2, 3, 4])
  const start = await topics.topic(topic)
  cursor.save({ seq: 3, epoch: start.epoch })
  assert.deepEqual((await take(topics.follow(topic, { cursor }), 1)).map((r) => r.data), [4])
})

test("consumers are stored, moved, listed and dropped", async () => {
  const topic = name()
  await topics.appendMany(topic, [1, 2, 3, 4].map((data) => ({ data })))
  assert.equal((await topics.putConsumer(topic, "billing", { seq: 1, ifSeq: null, meta: { ownedBy: "ada" } })).created, true)
  await assert.rejects(topics.putConsumer(topic, "billing", { seq: 3, ifSeq: 2 }), client.ConsumerMoved)
  const found = await topics.consumer(topic, "billing")
  assert.deepEqual([found.seq, found.lag_records, found.meta], [1, 3, { ownedBy: "ada" }])
  assert.deepEqual((await take(topics.consumers(topic), Infinity)).map((row) => row.consumer), ["billing"])
  assert.deepEqual((await take(topics.consumers(null, { prefix: topic }), Infinity)).map((row) => row.topic), [topic])
  const page = await topics.diff(topic, { consumer: "billing", commit: 2 })
  assert.deepEqual([page.committedSeq, page.records.map((r) => r.seq)], [2, [3, 4]])
  assert.equal((await topics.commit([{ topic, consumer: "billing", seq: 3 }])).committed, 1)
  assert.equal((await topics.consumer(topic, "billing")).seq, 3)
  assert.equal(await topics.dropConsumer(topic, "billing"), true)
  await assert.rejects(topics.consumer(topic, "billing"), client.ConsumerNotFound)
})

test("follow keeps its position on the server", async () => {
  const topic = name()
  const cursor = new client.ServerCursor("billing", { expireMs: 60_000 })
  await topics.appendMany(topic, [1, 2, 3].map((data) => ({ data })))
  const reading = topics.follow(topic, { cursor })
  for (let seq = 1; seq <= 3; seq++) assert.equal((await reading.next()).value.seq, seq)
  await topics.append(topic, 4)
  assert.equal((await reading.next()).value.seq, 4) // the first batch is processed, and saved
  await reading.return()
  assert.deepEqual([(await topics.consumer(topic, "billing")).seq, (await topics.consumer(topic, "billing")).expire_ms], [3, 60_000])
  assert.deepEqual((await take(topics.follow(topic, { cursor }), 1)).map((r) => r.data), [4])
})

test("follow reports that it has caught up", async () => {
  const topic = name()
  await topics.appendMany(topic, [1, 2, 3].map((data) => ({ data })))
  const seen = []
  const onCaughtUp = async () => { seen.push("head"); await topics.append(topic, 4) }
  for await (const item of topics.follow(topic, { onCaughtUp })) {
    seen.push(item.seq)
    if (item.seq === 4) break
  }
  assert.deepEqual(seen, [1, 2, 3, "head", 4])
})

test("follow reports a topic that was created again", async () => {
  const topic = name()
  await topics.append(topic, "old")
  const seen = []
  for await (const item of topics.follow(topic)) {
    seen.push(item instanceof Gap ? item.reason : item.data)
    if (item.data === "old") setTimeout(async () => { await topics.dropTopic(topic); await topics.append(topic, "new") }, 50)
    if (item.data === "new") break
  }
  assert.deepEqual(seen, ["old", "recreated", "new"])
})

test("follow from a seq of an earlier epoch starts over", async () => {
  const topic = name()
  const { epoch } = await topics.putTopic(topic)
  await topics.append(topic, "old")
  await topics.dropTopic(topic)
  await topics.append(topic, "new")
  const seen = await take(topics.follow(topic, { fromSeq: 1, epoch }), 2)
  assert.deepEqual(seen.map((item) => item instanceof Gap ? item.reason : item.data), ["recreated", "new"])
})

test("a signal ends a loop", async () => {
  const topic = name()
  await topics.append(topic, 1)
  const stop = new AbortController()
  for await (const _ of topics.follow(topic, { signal: stop.signal })) stop.abort()
})

test("a gap of a watch has the same reason as that of a read", async () => {
  const topic = name()
  await topics.putTopic(topic, { capRecords: 2 })
  await topics.appendMany(topic, [1, 2, 3, 4, 5].map((data) => ({ data })))
  const [gap] = await take(topics.watch({ [topic]: {} }), 1)
  assert.ok(gap instanceof Gap)
  assert.deepEqual([gap.firstSeq, gap.lastSeq, gap.reason], [1, 3, "cap"])
})

test("watch follows names and patterns", async () => {
  const topic = name()
  await topics.append(`${topic}.orders`, 1)
  setTimeout(() => topics.append(`${topic}.chat-1`, "hello"), 50)
  const items = await take(topics.watch({ [`${topic}.orders`]: {}, [`${topic}.chat-*`]: {} }), 2)
  assert.deepEqual(items.map((item) => [item.topic, item.data]), [[`${topic}.orders`, 1], [`${topic}.chat-1`, "hello"]])
})

test("work acks, retries and dead-letters", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue", maxDeliveries: 2, deadLetter: `${queue}.dead` })
  await topics.appendMany(queue, [0, 1, 2, 3, 4].map((data) => ({ data })))
  const stop = new AbortController()
  const failed = []
  const done = []
  const working = topics.work(queue, async (job) => { if (job.data === 2) throw new Error("bad"); done.push(job.data) }, {
    concurrency: 3, signal: stop.signal, retryDelayMs: () => 0, onError: (job) => failed.push(job.deliveries),
  })
  while ((await topics.topic(queue)).count) await new Promise((resolve) => setTimeout(resolve, 20))
  stop.abort()
  await working
  assert.deepEqual([done.sort(), failed], [[0, 1, 3, 4], [1, 2]])
  const [dead] = await take(topics.read(`${queue}.dead`), 1)
  assert.equal(dead.data, 2)
  assert.equal((await topics.redrive(queue, { dryRun: true })).redriven, 1)
})

test("a lease is extended while the handler runs", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue" })
  await topics.append(queue, 1)
  const stop = new AbortController()
  const deliveries = []
  await topics.work(queue, async (job) => {
    deliveries.push(job.deliveries)
    await untilExtended(queue, job)
    stop.abort()
  }, { leaseMs: 4500, signal: stop.signal })
  assert.deepEqual(deliveries, [1])
})

for (const [form, open] of [["claimed", (queue, options) => topics.jobs(queue, options)], ["pushed", (queue, options) => topics.pushedJobs(queue, options)]]) {
  test(`a loop acks jobs that were ${form}, and gives back what it did not finish`, async () => {
    const queue = name()
    await topics.putTopic(queue, { type: "queue" })
    await topics.appendMany(queue, [0, 1, 2].map((data) => ({ data })))
    const failing = async () => { for await (const _ of open(queue, { retryDelayMs: () => 100 })) throw new Error("bad") }
    await assert.rejects(failing(), /bad/)
    const stop = new AbortController()
    const seen = []
    for await (const job of open(queue, { signal: stop.signal, leaseMs: 4500 })) {
      seen.push(job.data)
      if (job.data === 0) assert.equal(job.deliveries, 2)
      if (job.data === 1) await untilExtended(queue, job)
      if (seen.length === 3) stop.abort()
    }
    assert.deepEqual(seen.sort(), [0, 1, 2]) // once each: the lease was extended
    assert.equal((await topics.topic(queue)).count, 0)
  })
}

test("a body that acks or nacks itself is not corrected", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue" })
  await topics.append(queue, "a", { priority: 9 })
  for await (const job of topics.jobs(queue)) {
    assert.ok(await job.extend(5000))
    assert.ok(await job.progress(0.4, "page 4 of 10"))
    for await (const listed of topics.listJobs(queue)) assert.deepEqual(listed.progress, { share: 0.4, text: "page 4 of 10" })
    if (job.deliveries === 1) { assert.ok(await job.nack(0, { reason: "once", error: new RangeError("far") })); continue }
    assert.deepEqual([job.reasons[0].reason, job.reasons[0].error?.type], ["once", "RangeError"])
    assert.ok(await job.ack())
    assert.equal(await job.ack(), false)
    break
  }
})

test("hooks see starts, results and errors", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue" })
  await topics.append(queue, 1)
  const stop = new AbortController()
  const seen = []
  await topics.work(queue, (job) => { if (job.deliveries === 1) throw new Error("bad") }, {
    signal: stop.signal, retryDelayMs: () => 0, onStart: () => seen.push("start"),
    onError: (_, error) => seen.push(error.message), onDone: (_, ms) => { seen.push(ms >= 0 && "done"); stop.abort() },
  })
  assert.deepEqual(seen, ["start", "bad", "start", "done"])
})

/** Return what `run` writes with console.error. */
async function logged(run) {
  const { error } = console
  const lines = []
  console.error = (...values) => lines.push(values.join(" "))
  try {
    await run()
  } finally {
    console.error = error
  }
  return lines
}

test("work logs a failed job if there is no hook", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue" })
  await topics.append(queue, 1)
  const stop = new AbortController()
  const lines = await logged(() => topics.work(queue, (job) => {
    if (job.deliveries === 1) throw new Error("bad")
    stop.abort()
  }, { signal: stop.signal, retryDelayMs: () => 0 }))
  assert.deepEqual(lines, [`job 1 of ${queue} failed (delivery 1): Error: bad`])
})

test("a failing hook does not hold up the job", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue" })
  await topics.append(queue, 1)
  const stop = new AbortController()
  const hook = (text) => () => { throw new Error(text) }
  const lines = await logged(() => topics.work(queue, (job) => {
    if (job.deliveries === 1) throw new Error("bad")
    stop.abort()
  }, { signal: stop.signal, retryDelayMs: () => 0, onStart: hook("start"), onError: hook("error"), onDone: hook("done") }))
  assert.deepEqual(lines, ["start", "error", "start", "done"].map((text) => `a hook of a worker failed: Error: ${text}`))
  assert.equal((await topics.topic(queue)).count, 0)
})

test("a job that takes too long goes back", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue" })
  await topics.append(queue, 1)
  const stop = new AbortController()
  const failed = []
  await topics.work(queue, async (job, signal) => {
    if (job.deliveries === 2) return stop.abort()
    await new Promise((resolve) => signal.addEventListener("abort", resolve))
  }, { timeoutMs: 100, signal: stop.signal, retryDelayMs: () => 0, onError: (_, error) => failed.push(error) })
  assert.ok(failed[0] instanceof client.TimedOut)
})

test("a handler learns that its job was cancelled", async () => {
  const queue = name()
  const made = await topics.putTopic(queue, { type: "queue", maxDeliveries: 2, retry: { minMs: 5 } })
  assert.deepEqual([made.config.discard, made.config.leases_durable, made.config.retry.min_ms], ["reject", true, 5])
  assert.equal(made.warnings?.length, 1)
  const seq = await topics.append(queue, 1)
  const stop = new AbortController()
  const failed = []
  await topics.work(queue, async (_, signal) => {
    await topics.delete(queue, { seqs: [seq] })
    await new Promise((resolve) => signal.addEventListener("abort", resolve))
  }, { leaseMs: 300, signal: stop.signal, onError: (job, error) => { failed.push(error.code, job.isCancelled); stop.abort() } })
  assert.deepEqual(failed, ["cancelled", true])
})

test("jobs have keys, are unique, and come at a rate", async () => {
  const queue = name()
  await topics.putTopic(queue, { type: "queue", maxInFlightPerKey: 1, rate: { perS: 1000, burst: 50 }, ratePerKey: null })
  const first = await topics.append(queue, 1, { key: "a", unique: { key: "u" } })
  assert.equal(await topics.append(queue, 1, { unique: { key: "u" } }), first)
  await topics.appendMany(queue, [{ data: 2, key: "a" }, { data: 3, key: "b" }])
  const jobs = await topics.claim(queue, { node: "w", max: 9 })
  assert.deepEqual(jobs.map((job) => [job.data, job.key]), [[1, "a"], [3, "b"]])
  const state = await topics.topic(queue)
  assert.deepEqual([state.queue.blocked, state.config.rate.per_s], [1, 1000])
  assert.deepEqual((await take(topics.scan(queue), Infinity)).map((record) => record.key), ["a", "a", "b"])
})

test("a scan reads a range with its gap", async () => {
  const topic = name()
  await topics.putTopic(topic, { capRecords: 2000 })
  await topics.appendMany(topic, Array.from({ length: 3000 }, (_, data) => ({ data, tag: "t" })))
  const [gap, ...records] = await take(topics.scan(topic), Infinity)
  assert.deepEqual([gap.firstSeq, gap.lastSeq], [1, 1000])
  assert.deepEqual(records.map((r) => r.seq), Array.from({ length: 2000 }, (_, n) => n + 1001))
  assert.deepEqual((await take(topics.scan(topic, { fromSeq: 2000, uptoSeq: 2002 }), Infinity)).map((r) => [r.seq, r.tag]), [[2001, "t"], [2002, "t"]])
  await assert.rejects(take(topics.scan(name()), 1), client.TopicNotFound)
})

/** Return a client whose connections break while `away()` says so, and a count of its attempts. */
function behind(away, options = {}) {
  const seen = { attempts: 0 }
  const cut = (...args) => (seen.attempts++, away(seen.attempts) ? Promise.reject(new TypeError("refused")) : fetch(...args))
  return [new Topics(url, { fetch: cut, ...options }), seen]
}

/** Make the waits between attempts a hundred times shorter. */
function hurry(t) {
  const { setTimeout } = globalThis
  globalThis.setTimeout = (call, ms, ...rest) => setTimeout(call, rest.length || ms > 10_000 ? ms : ms / 100, ...rest)
  t.after(() => (globalThis.setTimeout = setTimeout))
}

test("a client that has had an answer waits for its server", async (t) => {
  hurry(t)
  const topic = name()
  const [patient] = behind((attempt) => attempt > 1 && attempt < 14)
  await patient.health()
  assert.equal(await patient.append(topic, 1), 1)
  const [reading] = behind((attempt) => attempt > 1 && attempt < 14)
  await reading.health()
  assert.deepEqual((await take(reading.scan(topic), 1)).map((r) => r.data), [1])
})

test("a client without any answer gives up soon", async (t) => {
  hurry(t)
  const [stranger, seen] = behind(() => true)
  await assert.rejects(stranger.append("a", 1), client.Unreachable)
  assert.equal(seen.attempts, 6)
  await assert.rejects(take(stranger.scan("a"), 1), client.Unreachable)
  assert.equal(seen.attempts, 12)
})

test("a number of retries is kept after an answer", async (t) => {
  hurry(t)
  const [counted, seen] = behind((attempt) => attempt > 1, { retries: 2 })
  await counted.health()
  await assert.rejects(counted.health(), client.Unreachable)
  assert.equal(seen.attempts, 4)
  const [timed] = behind((attempt) => attempt > 1, { retryForMs: 200 })
  await timed.health()
  await assert.rejects(timed.health(), client.Unreachable)
  await assert.rejects(timed.append("a", 1), client.OutcomeUnknown)
})

test("a write gives up before its key expires", async () => {
  const lost = new Topics(url, { fetch: async () => { throw new TypeError("cut") }, retries: 100, retryForMs: 300 })
  await assert.rejects(lost.append("a", 1), client.OutcomeUnknown)
})

test("an answer that is cut in its body is asked for again", async () => {
  const topic = name()
  await topics.append(topic, 1)
  let cuts = 2
  const cutting = new Topics(url, {
    fetch: async (...args) => {
      const response = await fetch(...args)
      if (cuts-- <= 0) return response
      return new Response(new ReadableStream({ start: (stream) => stream.error(new TypeError("terminated")) }), { status: 200 })
    },
  })
  assert.equal((await cutting.diff(topic)).records.length, 1)
})

test("schedules are complete", async () => {
  const topic = name()
  await topics.putTopic(topic)
  const config = { topic, record: { data: { do: "report" }, tag: "t" }, cron: "30 2 * * *", timezone: "Europe/Berlin", catchUp: "last" }
  assert.equal((await topics.putSchedule(topic, config)).created, true)
  assert.equal((await topics.putSchedule(topic, config)).created, false)
  assert.deepEqual((await topics.schedule(topic)).record, { data: { do: "report" }, tag: "t" })
  assert.deepEqual((await take(topics.schedules({ topic }), 1)).map((s) => s.schedule), [topic])
  assert.equal((await topics.previewSchedule(topic)).length, 10)
  const ticks = await topics.previewSchedule(topic, { everyMs: 5000, after: 1000 })
  assert.deepEqual(ticks[0], { at: 6000, local: "1970-01-01T00:00:06+00:00" })
  assert.equal(await topics.runSchedule(topic), 1)
  assert.deepEqual([(await topics.pauseSchedule(topic)).paused, (await topics.pauseSchedule(topic, false)).paused], [true, false])
  assert.deepEqual((await topics.diff(topic)).records.map((r) => [r.data, r.tag]), [[{ do: "report" }, "t"]])
  assert.equal(await topics.dropSchedule(topic), true)
})

test("routers, deletes and the server are complete", async () => {
  const topic = name()
  await topics.append(topic, 1, { tag: "public:1" })
  await topics.putRouter(`${topic}->copy`, { source: topic, dest: `${topic}.copy`, filter: ["tag", "Glob", "public:*"] })
  assert.equal((await topics.router(`${topic}->copy`)).dest, `${topic}.copy`)
  assert.equal((await topics.previewRouter(`${topic}->copy`)).matched, 1)
  assert.deepEqual((await take(topics.routers({ source: topic }), 1)).map((r) => r.router), [`${topic}->copy`])
  assert.equal(await topics.dropRouter(`${topic}->copy`), true)
  assert.equal((await topics.delete(topic, { beforeSeq: 2 })).deleted, 1)
  assert.equal((await take(topics.topics({ prefix: topic }), 1))[0].topic, topic)
  assert.equal((await topics.health()).status, "ok")
  assert.ok((await topics.metrics()).topics_topics >= 1)
  assert.match(await topics.metricsText(), /^# HELP/m)
  assert.ok((await topics.openapi()).paths["/v0/health"])
  assert.equal((await topics.ready()).status, "ready")
  assert.ok((await topics.whoami()).scopes.includes("read"))
  assert.ok(Array.isArray((await topics.samples()).rows))
  assert.equal((await topics.timeline(topic)).ranges[0].state, "deleted")
  const { epoch, head_seq: seq } = await topics.topic(topic)
  assert.equal((await topics.reportArchived(topic, { seq, epoch })).archived_seq, seq)
  assert.equal(await topics.dropTopic(topic), true)
})

test("a socket publishes and subscribes", { skip: globalThis.WebSocket ? false : "this Node has no WebSocket" }, async () => {
  const topic = name()
  const socket = await topics.connect()
  assert.equal((await socket.publish(topic, { data: "hello", node: "me" })).firstSeq, 1)
  await socket.subscribe(topic)
  const [record] = await take(socket, 1)
  assert.ok(record instanceof TopicRecord)
  assert.deepEqual([record.topic, record.seq, record.data, record.node], [topic, 1, "hello", "me"])
  await assert.rejects(socket.subscribe(name()), client.TopicNotFound)
  assert.ok((await socket.ping()) < 10_000)
  socket.close()
})

test("a file keeps a position", async () => {
  const cursor = new FileCursor(`${process.env.TMP_DIR}/cursor.json`)
  assert.equal(await cursor.load(), null)
  await cursor.save({ seq: 7, epoch: 1 })
  assert.deepEqual(await cursor.load(), { seq: 7, epoch: 1 })
})

test("a value that JSON cannot hold is an error at once", async () => {
  const topic = name()
  const circular = {}
  circular.self = circular
  const broken = { toJSON() { throw new Error("no text for this") } }
  let requests = 0
  const counting = new Topics(url, { fetch: (...args) => (requests++, fetch(...args)), WebSocket: globalThis.WebSocket })
  await counting.putTopic(topic, { type: "queue" })
  const socket = globalThis.WebSocket ? await counting.connect() : null
  requests = 0
  for (const value of [1n, circular, broken, NaN, { price: [Infinity] }]) {
    const calls = [
      () => counting.append(topic, value), () => counting.append(topic, 1, { meta: { value } }), () => counting.appendMany(topic, [{ data: 1 }, { data: value }]),
      () => counting.putTopic(topic, { ttlMs: value }), () => counting.diff(topic, { filter: value }), () => counting.read(topic, { filter: value }).next(),
      () => counting.scan(topic, { filter: value }).next(), () => counting.follow(topic, { filter: value }).next(),
      () => counting.watch({ [topic]: { filter: value } }).next(), () => counting.delete(topic, { match: value }),
      () => counting.putConsumer(topic, "a", { meta: { value } }), () => counting.claim(topic, { max: value }), () => counting.redrive(topic, { limit: value }),
      () => counting.putRouter("r", { source: topic, dest: "d", filter: value }),
      ...(socket ? [() => socket.publish(topic, { data: value }), () => socket.subscribe(topic, { filter: value })] : []),
    ]
    for (const call of calls) await assert.rejects(call, (error) => error instanceof TypeError, String(call))
  }
  assert.equal(requests, 0)
  await assert.rejects(counting.append(topic, { a: [1, { b: -Infinity }] }), { message: /JSON cannot hold this request: "b" is -Infinity/ })
  await assert.rejects(counting.append(topic, broken), (error) => error.cause.message === "no text for this")
  await counting.append(topic, { nothing: null, text: "null" })
  assert.deepEqual((await take(topics.read(topic), 1))[0].data, { nothing: null, text: "null" })
  socket?.close()
})

test("a key that no header can hold is an error at once", () => {
  assert.throws(() => new Topics(url, { token: "schlüssel-ключ" }), TypeError)
  assert.throws(() => new Topics("http://name:word@127.0.0.1:4000"), client.BadUrl)
})

test("a function whose token no header can hold fails each call at once", async () => {
  const page = "<!DOCTYPE HTML>\n<p>not found</p>"
  for (const token of [page, 7]) {
    const failing = new Topics(url, { token: async () => token, retryForMs: 60_000 })
    const said = (error) => error instanceof client.Unauthorized && error.message.includes(JSON.stringify(String(token)).slice(0, 10))
    for (const call of [() => failing.diff("t"), () => failing.watch(["t"]).next(), () => failing.follow("t").next()]) await assert.rejects(call, said)
  }
})

test("a parser of the caller that fails ends the call", async () => {
  const topic = name()
  await topics.append(topic, 1)
  const failing = new Topics(url, { parse: () => { throw new Error("no such number") } })
  const caused = (error) => !error.retryable && error.cause.message === "no such number"
  await assert.rejects(failing.diff(topic), caused)
  await assert.rejects(failing.scan(topic).next(), caused)
  await assert.rejects(failing.follow(topic).next(), caused)
})
