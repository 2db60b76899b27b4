/** One queue: its jobs by state with their holders and deadlines, its dead letters, and plots of the last hour. */

import { h, isBusy, put, redraw, setText } from "../parts/dom.js"
import { ago, clock, count, date, duration, rate, short, whole } from "../parts/format.js"
import { jsonLine, jsonTree } from "../parts/json.js"
import { plot } from "../parts/plot.js"
import { Ring } from "../parts/ring.js"
import { poll, session, topicPath } from "../parts/session.js"
import { actions } from "../parts/snippets.js"
import { allowed, badge, button, card, copyAs, dialog, empty, failure, form, missingNote, note, pageHead, plainTable, stat, stats, toast } from "../parts/ui.js"
import { configureTopic, writeRecord } from "./topic-forms.js"

export const title = ({ params }) => params[0]

const TABS = [["in_flight", "In flight"], ["ready", "Ready"], ["delayed", "Delayed"], ["dead", "Dead letters"]]
const PAGE = 50
const JOIN_MS = 45_000 // joins samples that the server takes every 15 seconds

export function show({ params: [name], query, signal }) {
  let state = null
  let before = null
  let tab = query.get("tab") ?? "in_flight"
  const ring = new Ring()
  const problem = h("div")
  const figures = {
    ready: stat("Ready"), flight: stat("In flight"), delayed: stat("Delayed"), dead: stat("Dead-lettered"),
    done: stat("Finished", "–", { title: "Jobs that were completed or dead-lettered, per second" }),
    age: stat("Oldest ready job"), wait: stat("Expected wait", "–", { title: "Ready jobs divided by the jobs finished per second" }),
  }
  const plots = {
    backlog: plot("Jobs", { format: short, gapMs: JOIN_MS }),
    done: plot("Finished", { format: rate, gapMs: JOIN_MS }),
    wait: plot("Waiting time", { format: duration, gapMs: JOIN_MS }),
  }
  const unsampled = note("The plots begin now. The server takes a sample of this queue every 15 seconds from now on, and keeps them for an hour. It does so for up to 64 queues at a time.")
  const list = h("div", { role: "tabpanel", id: "jobs", tabIndex: 0, "aria-label": "Jobs" })
  const tabs = TABS.map(([key, label]) => h("button", {
    type: "button", role: "tab", id: `tab-${key}`, "aria-controls": "jobs",
    on: { click: () => choose(key), keydown: (event) => moveTab(event, key) },
  }, label))

  function choose(key) {
    tab = key
    TABS.forEach(([one], at) => {
      tabs[at].setAttribute("aria-selected", String(one === key))
      tabs[at].tabIndex = one === key ? 0 : -1
    })
    put(list, h("p", { class: "loading" }, "Loading"))
    void jobs().catch((error) => put(problem, failure(error)))
  }

  function moveTab(event, key) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
    if (!step) return
    const at = (TABS.findIndex(([one]) => one === key) + step + TABS.length) % TABS.length
    choose(TABS[at][0])
    tabs[at].focus()
  }

  async function refresh() {
    const [seen, oldest] = await Promise.all([
      session.request("GET", topicPath(name, "?touch=false"), undefined, { signal }),
      session.request("GET", topicPath(name, "/jobs?state=ready&page_size=1"), undefined, { signal }),
    ])
    const now = performance.now()
    const finished = seen.head_seq - seen.count - (seen.lost ?? 0)
    const done = before && before.epoch === seen.epoch ? Math.max(finished - before.finished, 0) / ((now - before.at) / 1000) : 0
    before = { finished, at: now, epoch: seen.epoch }
    state = seen
    const { ready, in_flight, delayed, dead_lettered, dead_letter_error } = seen.queue
    const age = oldest.jobs.length ? Math.max(session.now() - oldest.jobs[0].$ts, 0) : 0
    const wait = done > 0 ? (ready / done) * 1000 : 0
    put(problem, dead_letter_error && h("div", { class: "failure", role: "alert" }, `Jobs cannot move to the dead-letter topic: ${dead_letter_error}`))
    figures.ready.set(whole(ready))
    figures.flight.set(whole(in_flight))
    figures.delayed.set(whole(delayed))
    figures.dead.set(whole(dead_lettered), seen.config.dead_letter ? `into ${seen.config.dead_letter}` : "", dead_lettered ? "warn" : "")
    figures.done.set(rate(done))
    figures.age.set(oldest.jobs.length ? duration(age) : "none")
    figures.wait.set(done > 0 ? duration(wait) : "–")
    await sample()
    draw(ring, plots, { ready, in_flight, done, age })
    await jobs()
  }

  /** Get new samples, if there can be some. */
  async function sample() {
    if (session.now() < ring.last + ring.intervalMs) return
    ring.add(await session.request("GET", `/v0/samples?queue=${encodeURIComponent(name)}&after=${ring.last}`, undefined, { signal }))
    unsampled.hidden = ring.rows.length > 0
  }

  async function jobs() {
    if (!state) return
    const asked = tab
    if (isBusy(list)) return
    const content = asked === "dead" ? await deadLetters(state, { signal, again }) : await listed(state, asked, { signal, again })
    if (asked === tab) redraw(list, content)
  }

  async function again() {
    await refresh()
  }

  const counting = setInterval(() => {
    for (const cell of list.querySelectorAll("[data-deadline]")) setText(cell, remaining(Number(cell.dataset.deadline)))
  }, 500)
  signal.addEventListener("abort", () => clearInterval(counting))
  const open = (heading, make) => () => state && dialog(heading, (close) => make(state, () => {
    close()
    void again()
  }))
  const refused = missingNote("read", name)
  if (!refused) {
    choose(tab)
    poll(refresh, { everyMs: 2000, signal, onError: (error) => put(problem, failure(error)) })
  }
  return [
    pageHead(name, {
      crumbs: [["Queues", "#/queues"]], badges: [badge("queue")],
      actions: [
        h("a", { class: "button", href: `#/topics/${encodeURIComponent(name)}` }, "Records and timeline"),
        copyAs(() => actions.jobs(name, tab === "dead" ? null : tab)),
        allowed("write", name, () => button("Add job", open("Add a job", writeRecord), { kind: "primary" })),
        allowed("admin", name, () => button("Configure", open("Configure the queue", configureTopic))),
      ],
    }),
    refused ?? missingNote("write delete admin", name), problem,
    !refused && [
      stats(...Object.values(figures)),
      card("Last hour", [unsampled, h("div", { class: "plots" }, Object.values(plots).map((one) => one.element))]),
      h("section", { class: "card" }, h("div", { class: "tabs", role: "tablist", "aria-label": "Jobs by state" }, tabs), list),
    ],
  ]
}

/** Draw the samples, and behind them what the page sees now. */
function draw(ring, plots, now) {
  const times = [...ring.column("ts"), session.now()]
  const ready = [...ring.column("ready"), now.ready]
  const done = [...ring.perSecond("finished"), now.done]
  const line = (label, color, values, area = false) => ({ name: label, color, values, area })
  plots.backlog.set(times, [line("ready", "c1", ready), line("in flight", "c2", [...ring.column("in_flight"), now.in_flight])])
  plots.done.set(times, [line("finished", "c1", done, true)])
  plots.wait.set(times, [
    line("oldest job", "c1", [...ring.column("age_ms"), now.age]),
    line("expected", "c2", ready.map((count, at) => (done[at] > 0 ? (count / done[at]) * 1000 : count > 0 ? null : 0))),
  ])
}

function remaining(deadline) {
  const left = deadline - session.now()
  return left <= 0 ? "ended" : duration(left < 60_000 ? Math.ceil(left / 1000) * 1000 : left)
}

/** A table of the jobs in one state. */
async function listed(state, kind, { signal, again }) {
  const name = state.topic
  const page = await session.request("GET", topicPath(name, `/jobs?state=${kind}&page_size=${PAGE}`), undefined, { signal })
  if (page.jobs.length === 0) return empty(EMPTY[kind][0], EMPTY[kind][1], kind === "ready" ? `curl ${location.origin}${topicPath(name)} -H 'content-type: application/json' -d '{"records":[{"data":{"to":"ada@example.com"}}]}'` : null)
  const held = kind === "in_flight"
  const mayWrite = session.can("write", name)
  const rows = page.jobs.map((job) => {
    const lease = { node: job.node, seqs: [job.$seq], lease_ids: [job.lease_id] }
    return [
      h("td", { class: "number" }, whole(job.$seq)),
      h("td", { class: "number" }, whole(job.deliveries), state.config.max_deliveries ? h("span", { class: "faint" }, ` of ${whole(state.config.max_deliveries)}`) : ""),
      h("td", { class: "number" }, whole(job.priority)),
      h("td", { title: date(job.$ts) }, ago(job.$ts, session.now())),
      held && h("td", {}, job.node),
      held && h("td", { class: "number", "data-deadline": job.deadline }, remaining(job.deadline)),
      kind === "delayed" && h("td", { title: date(job.deliver_at ?? 0), class: "number", "data-deadline": job.deliver_at ?? 0 }, remaining(job.deliver_at ?? 0)),
      h("td", { class: "data" }, folded(job.data)),
      held && h("td", { class: "row-actions" },
        mayWrite && button("Return", () => act(() => session.client.nack(name, camel(lease)), "nacked", `Returned job ${whole(job.$seq)} to the queue.`, again), { kind: "small", title: "nack: the job can be claimed again at once" }),
        mayWrite && button("Extend", () => act(() => session.client.extend(name, { ...camel(lease), leaseMs: state.config.lease_ms }), "extended", `Job ${whole(job.$seq)} is held for ${duration(state.config.lease_ms)} more.`, again), { kind: "small", title: "extend: the worker keeps the job for another lease" }),
        copyAs(() => actions.nack(name, lease))),
    ]
  })
  const heads = ["Seq#", "Deliveries#", "Priority#", "Added", held && "Holder", held && "Deadline#", kind === "delayed" && "Due in#", "Data", held && "Actions"].filter(Boolean)
  return [
    jobTable(heads, rows),
    page.next_cursor && note(`The first ${PAGE} of ${count(page[kind], "job")}, in the order of the log.`),
  ]
}

const EMPTY = {
  in_flight: ["No job is in flight", "A worker that claims a job holds it until its deadline."],
  ready: ["No job is ready", "This command adds one:"],
  delayed: ["No job is delayed", "A job with delay_ms or deliver_at waits here, and so does a job that was returned with a delay."],
}

function folded(data) {
  const details = h("details", { on: { toggle: () => details.open && details.childElementCount === 1 && details.append(jsonTree(data)) } }, h("summary", {}, jsonLine(data)))
  return details
}

function jobTable(heads, rows) {
  return plainTable("Jobs", heads, rows.map((cells) => h("tr", {}, cells)), "jobs")
}

async function act(work, field, text, again) {
  try {
    const answer = await work()
    toast(answer[field] ? text : "The lease had ended: nothing was changed.", answer[field] ? "" : "bad")
  } catch (error) {
    toast(error.message, "bad")
  }
  await again()
}

function camel({ node, seqs, lease_ids }) {
  return { node, seqs, leaseIds: lease_ids }
}

// --- dead letters

/** The last dead letters of the queue, and the buttons that move them back. */
async function deadLetters(state, { signal, again }) {
  const target = state.config.dead_letter
  if (!target) return empty("This queue has no dead-letter topic", "Jobs are delivered until a worker completes them. Set max_deliveries and dead_letter to move failing jobs aside.")
  let letters = []
  try {
    const known = await session.request("GET", topicPath(target, "?touch=false"), undefined, { signal })
    const page = await session.client.diff(target, { fromSeq: Math.max(known.head_seq - 1000, 0), limit: 1000, includeTags: true, signal })
    letters = page.records.filter((record) => record.meta?.value.$dead_letter_from === state.topic).slice(-PAGE).reverse()
  } catch (error) {
    if (error.code !== "topic_not_found" && error.code !== "forbidden") throw error
    if (error.code === "forbidden") return failure(error)
  }
  if (letters.length === 0) return empty("No dead letters", `Jobs that were delivered ${count(state.config.max_deliveries, "time")} without success go to ${target}.`)
  const may = session.can("read write delete", state.topic) && session.covers(target)
  const rows = letters.map((record) => [
    h("td", { class: "number" }, whole(record.seq)),
    h("td", { class: "number" }, whole(record.meta.value.$dead_letter_src_seq)),
    h("td", { class: "number" }, whole(record.meta.value.$dead_letter_deliveries)),
    h("td", { title: date(record.ts) }, clock(record.ts)),
    h("td", { class: "data" }, folded(record.data)),
    h("td", { class: "row-actions" },
      may && button("Redrive", () => redrive(state, { seqs: [record.seq] }, again), { kind: "small", title: "Move this job back into the queue" }),
      copyAs(() => actions.redrive(state.topic, { seqs: [record.seq] }))),
  ])
  return [
    h("div", { class: "toolbar" }, may && button("Redrive all", () => redrive(state, {}, again)), note(`The last dead letters in ${target}.`), !may && missingNote("write delete", state.topic)),
    jobTable(["Seq#", "Job#", "Deliveries#", "Since", "Data", "Actions"], rows),
  ]
}

/** Count first, then move. */
function redrive(state, which, again) {
  dialog("Redrive dead letters", (close) => {
    const place = h("div", {}, h("p", { class: "loading" }, "Counting"))
    void (async () => {
      try {
        const found = await session.client.redrive(state.topic, { ...which, limit: 10_000, dryRun: true })
        if (found.redriven === 0) return void put(place, note("No dead letter of this queue was found: it may have been redriven already."))
        const more = found.caught_up ? "" : " or more"
        const made = form([h("p", {}, h("strong", {}, `${count(found.redriven, "job")}${more}`), ` would move from ${found.dead_letter} back into ${state.topic}. Their delivery counts begin again.`)], {
          label: `Redrive ${count(found.redriven, "job")}`,
          action: () => actions.redrive(state.topic, which),
          submit: async () => {
            const moved = await session.client.redrive(state.topic, { ...which, limit: 10_000 })
            close()
            toast(`Moved ${count(moved.redriven, "job")} back into ${state.topic}.`)
            await again()
          },
        })
        put(place, made.element)
        made.send.focus()
      } catch (error) {
        put(place, failure(error))
      }
    })()
    return place
  })
}
