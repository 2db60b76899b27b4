/** The map: topics, queues, routers, consumers and workers as one graph, with what flows along its edges. */

import {
	count, empty, h, listAll, livePage, liveText, loading, note, pageHead, put, rate, Rates, Readers, readReaders, redraw, session, short, span, svg,
	topicPath, whole,
} from "../parts/kit.js"
import { CURRENT_MS } from "./topic.js"
import { topicLink } from "./topics.js"

export const title = "Map"

const MOST_TOPICS = 60 // that the map shows; those with readers and writers first
const MOST_QUEUES = 12 // whose workers are looked up
const HELD = 200 // jobs of a queue that are looked at for their workers
const MOVING_MS = 60_000 // a topic without readers is shown if it was written to within this time

export function show({ signal }) {
	const summary = liveText()
	const picture = h("div.scroll", { tabIndex: 0, role: "region", "aria-label": "Map of the system" }, loading("Loading"))
	const readers = new Readers()
	const rates = new Rates()

	async function refresh() {
		const [topics, routers, consumers] = await Promise.all([
			listAll("/v0/topics?details=true", "topics", { signal }), listAll("/v0/routers", "routers", { signal }),
			listAll("/v0/consumers", "consumers", { signal, most: 1000 }), readReaders(readers, signal),
		])
		const queues = topics.filter((topic) => topic.queue?.in_flight).slice(0, MOST_QUEUES)
		const workers = await Promise.all(queues.map(async ({ topic }) => [topic, await holders(topic, signal)]))
		if (topics.length === 0) return void put(picture, empty("Nothing here yet", "Topics, routers, consumers and workers appear here as they come."))
		const found = chart(topics, routers, consumers, new Map(workers), { readers, rates })
		const label = `${count(found.nodes.length, "node")}, ${count(found.edges.length, "edge")}`
		put(summary, label, found.hidden > 0 && `; ${count(found.hidden, "quiet topic")} without readers not shown`)
		redraw(picture, found.nodes.length ? [graph(found.nodes, found.edges, label, picture.clientWidth), outline(found.nodes, found.edges, label)] : note("Nothing moves, and nothing reads."))
		return Math.max(3000, topics.length * 5)
	}

	return livePage(pageHead("Map"), { refresh, place: picture, signal }, h("div.toolbar", summary), h("section.card", picture))
}

/** How many jobs of a queue each worker holds. */
async function holders(queue, signal) {
	const { jobs } = await session.get(topicPath(queue, `/jobs?state=in_flight&page_size=${HELD}`), signal)
	const held = new Map()
	for (const { node } of jobs) held.set(node, (held.get(node) ?? 0) + 1)
	return held
}

/** The nodes and edges of the map. */
function chart(topics, routers, consumers, workers, { readers, rates }) {
	const now = session.now()
	const edges = []
	const ends = new Map()
	const speed = (key, lag, done) => {
		readers.note(key, now, lag, done)
		return readers.trend(key)?.done
	}
	const flow = (late, lag, perSecond) => (late ? `${short(lag)} behind` : perSecond === undefined ? "" : rate(perSecond))
	for (const { router, source, dest, lag, forwarded_total: done, last_error: error } of routers) {
		const perSecond = speed(`router ${source} ${router}`, lag, done)
		const late = lag > (perSecond ?? 0) * (CURRENT_MS / 1000)
		edges.push({ from: source, to: dest, label: error ? "held up" : flow(late, lag, perSecond), kind: error ? "held" : late ? "behind" : "", title: `router ${router}: ${whole(done)} copied, ${whole(lag)} behind${error ? `, held up: ${error}` : ""}` })
	}
	for (const { topic, consumer, lag_records: lag, lag_ms: ms, seq } of consumers) {
		const id = `consumer ${topic} ${consumer}`
		const perSecond = speed(id, lag, seq)
		ends.set(id, { id, label: consumer, detail: "consumer", href: `#/consumers?search=${encodeURIComponent(consumer)}`, kind: "reader" })
		edges.push({ from: topic, to: id, label: flow(ms >= CURRENT_MS, lag, perSecond), kind: ms >= CURRENT_MS ? "behind" : "", title: `consumer ${consumer} of ${topic}: at seq ${whole(seq)}, ${whole(lag)} behind` })
	}
	for (const [queue, held] of workers) {
		for (const [node, number] of held) {
			const id = `worker ${node}`
			ends.set(id, { id, label: node, detail: "worker", kind: "reader" })
			edges.push({ from: queue, to: id, label: `holds ${whole(number)}`, title: `worker ${node} holds ${count(number, "job")} of ${queue}` })
		}
	}
	const known = new Map(topics.map((topic) => [topic.topic, topic]))
	for (const { topic, config, queue } of topics) {
		if (queue?.dead_lettered && known.has(config.dead_letter)) edges.push({ from: topic, to: config.dead_letter, label: `${short(queue.dead_lettered)} dead`, kind: "dead", title: `${count(queue.dead_lettered, "job")} of ${topic} moved to ${config.dead_letter}` })
	}
	const linked = new Set(edges.flatMap(({ from, to }) => [from, to]))
	const shown = topics.filter((row) => linked.has(row.topic) || row.queue?.ready || now - (row.last_write_ts ?? 0) < MOVING_MS)
		.sort((a, b) => linked.has(b.topic) - linked.has(a.topic) || (a.topic < b.topic ? -1 : 1)).slice(0, MOST_TOPICS)
	const rateOf = new Map(topics.map((row) => [row, rates.note(row.topic, row.epoch, row.head_seq)]))
	const nodes = shown.map((row) => {
		const perSecond = rateOf.get(row)
		const idle = row.queue?.ready > 0 && row.queue.in_flight === 0 && !(perSecond > 0) && now - (row.last_write_ts ?? 0) > 15_000
		const jobs = row.queue && `${short(row.queue.ready)} ready${idle ? ", no worker" : `, ${short(row.queue.in_flight)} held`}`
		return { id: row.topic, label: row.topic, detail: jobs ?? (perSecond === null ? count(row.count, "record") : rate(perSecond)), href: topicLink(row.topic, row.queue ? "queues" : "topics"), kind: row.queue ? `queue ${idle ? "idle" : ""}` : "" }
	})
	const all = new Set([...nodes.map(({ id }) => id), ...ends.keys()])
	return { nodes: [...nodes, ...ends.values()], edges: edges.filter(({ from, to }) => all.has(from) && all.has(to)), hidden: topics.length - shown.length }
}

// --- the graph

const BOX = { width: 176, height: 40 }
const GAP = { x: 140, most: 320, y: 14 }
const LABEL = 18

/** Draw nodes `{id, label, detail, href, kind}` and edges `{from, to, label, kind, title}` from left to right, in columns. */
function graph(nodes, edges, label, room) {
	const places = arrange(nodes, edges)
	const columns = Math.max(...[...places.values()].map((place) => place.column)) + 1
	const rows = Math.max(...[...places.values()].map((place) => place.row)) + 1
	const gap = Math.min(Math.max((room - columns * BOX.width - 4) / Math.max(columns - 1, 1), GAP.x), GAP.most)
	const width = columns * BOX.width + (columns - 1) * gap + 4
	const height = rows * (BOX.height + GAP.y) + 10
	const x = (place) => 2 + place.column * (BOX.width + gap)
	const y = (place) => 6 + place.row * (BOX.height + GAP.y)
	const drawn = new Map()
	return svg("svg.graph", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label },
		svg("defs", svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path.arrow-head", { d: "M0 0L8 4L0 8Z" }))),
		edges.map((edge) => {
			const [from, to] = [places.get(edge.from), places.get(edge.to)]
			const pair = `${edge.from} ${edge.to}`
			const nth = drawn.get(pair) ?? 0
			drawn.set(pair, nth + 1)
			const back = to.column <= from.column
			const start = [x(from) + BOX.width, y(from) + BOX.height / 2]
			const end = back ? [x(to) + BOX.width / 2, y(to) + BOX.height + 2] : [x(to) - 2, y(to) + BOX.height / 2]
			const bend = gap / 2
			const path = back
				? `M${start}C${start[0] + bend} ${start[1] + 40} ${end[0]} ${end[1] + 60} ${end}`
				: `M${start}C${start[0] + 34} ${start[1]} ${start[0] + 6} ${end[1]} ${start[0] + 46} ${end[1]}L${end}`
			const at = back ? [start[0] + 12, start[1] + 24] : [end[0] - 14, end[1] - 5 + nth * 16]
			return svg("g", { class: `edge ${edge.kind ?? ""}` },
				svg("path", { d: path, "marker-end": "url(#arrow)" }),
				svg("text", { x: at[0], y: at[1], "text-anchor": back ? "middle" : "end" }, edge.label),
				svg("title", edge.title))
		}),
		nodes.map((node) => {
			const place = places.get(node.id)
			const [left, top] = [x(place), y(place)]
			const content = [
				svg("rect", { x: left, y: top, width: BOX.width, height: BOX.height, rx: node.kind === "reader" ? BOX.height / 2 : 6 }),
				svg("text", { x: left + 14, y: top + (node.detail ? 17 : BOX.height / 2 + 4) }, cut(node.label)),
				node.detail && svg("text.detail", { x: left + 14, y: top + 32 }, node.detail),
				svg("title", `${node.label}${node.detail ? `, ${node.detail}` : ""}`),
			]
			return node.href ? svg("a", { href: node.href, class: `box ${node.kind ?? ""}` }, content) : svg("g", { class: `box ${node.kind ?? ""}` }, content)
		}))
}

const cut = (text) => (text.length > LABEL ? `${text.slice(0, LABEL - 1)}…` : text)

/** The same as an indented list. */
function outline(nodes, edges, label) {
	const byId = new Map(nodes.map((node) => [node.id, node]))
	const shown = new Set()
	const item = (node, edge) => {
		const first = !shown.has(node.id)
		shown.add(node.id)
		const next = first ? edges.filter(({ from }) => from === node.id) : []
		return h("li", h("div", h(node.href ? "a" : "span", { href: node.href }, node.label), edge?.label && h("span", { class: `count ${{ behind: "warn", held: "bad" }[edge.kind] ?? ""}` }, edge.label), node.detail && span("faint", node.detail)),
			next.length > 0 && h("ul", next.map((one) => item(byId.get(one.to), one))))
	}
	const targets = new Set(edges.map(({ to }) => to))
	const roots = nodes.filter(({ id }) => !targets.has(id)).map((node) => item(node))
	for (const node of nodes) if (!shown.has(node.id)) roots.push(item(node)) // what is left lies on cycles
	return h("ul.outline", { "aria-label": label }, roots)
}

/** Give every node a column, by its distance from a source, and a row, so that edges to the right do not cross. */
function arrange(nodes, edges) {
	const next = new Map(nodes.map(({ id }) => [id, []]))
	const targets = new Set()
	for (const { from, to } of edges) {
		if (!next.get(from).includes(to)) next.get(from).push(to)
		targets.add(to)
	}
	const places = new Map()
	let row = 0
	const visit = (id, column) => {
		if (places.has(id)) return
		const place = { column, row }
		places.set(id, place)
		const children = next.get(id).filter((one) => !places.has(one))
		if (children.length === 0) row += 1
		for (const one of children) visit(one, column + 1)
		const rows = children.map((one) => places.get(one).row)
		if (rows.length) place.row = (Math.min(...rows) + Math.max(...rows)) / 2
	}
	for (const { id } of nodes) if (!targets.has(id)) visit(id, 0)
	for (const { id } of nodes) visit(id, 0) // what is left lies on cycles
	return places
}
