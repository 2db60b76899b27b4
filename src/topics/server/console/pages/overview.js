/** Overview: figures of the server, with plots. */

import {
	actions, badge, bytes, card, copyAs, count, duration, h, livePage, note, noTopics, pageHead, plot, plotGrid, put, rate, Ring,
	segmented, session, short, span, stat, stats, whole,
} from "../parts/kit.js"

export const title = "Overview"

const STEPS = ["calm", "gathering pushes", "gathering commits", "pausing topics", "refusing requests"]

/** Plots: title, options, and series of `[label, colour, column, whether it is a rate]`. */
const PLOTS = {
	appends: ["Records appended", { format: rate }, [["appended", "c1", "appended", true]]],
	reads: ["Read and delivered", { format: rate }, [["read", "c1", "read", true], ["delivered", "c2", "delivered", true]]],
	jobs: ["Jobs", { format: rate }, [["claimed", "c1", "claimed", true], ["acked", "c2", "acked", true]]],
	losses: ["Records lost", { format: rate }, ["cap", "ttl", "corrupt"].map((reason) => [reason, reason, `lost_${reason}`, true])],
	syncs: ["Sync of the log, p99", { format: (us) => duration(us / 1000), floor: 100 }, [["p99", "c1", "sync_p99_us"]]],
	log: ["Written to the log", { format: (value) => `${bytes(value)}/s`, floor: 1024, binary: true }, [["bytes", "c1", "wal_bytes", true]]],
	memory: ["Memory", { format: bytes, floor: 1024, binary: true }, [["resident", "c1", "resident_bytes"]]],
	connections: ["Connections", { format: short }, [["connections", "c1", "connections"], ["streams", "c2", "streams"]]],
	lag: ["Loop lag", { format: duration, floor: 1 }, [["lag", "c1", "lag_ms"]]],
}

export function show({ signal }) {
	const health = span("health")
	const figures = {
		uptime: stat("Uptime"),
		topics: stat("Topics"),
		records: stat("Live records"),
		stored: stat("Stored"),
		memory: stat("Memory"),
		connections: stat("Connections"),
		pressure: stat("Pressure", "–", { title: "How late the event loop runs, and what the server does about it" }),
		lost: stat("Lost", "–", { title: "Records that caps, TTLs or damage removed. Deleted records do not count." }),
	}
	const plots = Object.fromEntries(Object.entries(PLOTS).map(([name, [title, options]]) => [name, plot(title, options)]))
	const welcome = h("div")
	const replicas = h("div")
	let ring = new Ring()
	let day = false
	const span24 = segmented("Time", [["", "Hour"], ["day", "Day"]], "", (chosen) => {
		day = Boolean(chosen)
		ring = new Ring()
		if (day) ring.keptMs *= 24
		for (const one of Object.values(plots)) one.show(ring.keptMs)
		refresh()
	})

	async function refresh() {
		const into = ring
		const answer = await session.get(`/v0/samples?after=${ring.last}${day ? "&minutes=true" : ""}`, signal)
		if (into !== ring) return
		ring.add(answer)
		const { uptime_ms } = await session.get("/v0/health", signal)
		figures.uptime.set(duration(Math.floor(uptime_ms / 1000) * 1000))
		draw(ring, figures, plots)
		const now = ring.newest()
		put(health, now ? badge(now.pressure > 0 ? "under pressure" : "healthy", now.pressure > 0 ? "warn" : "good") : badge("starting", ""))
		put(welcome, now && now.topics === 0 && noTopics())
		put(replicas, replicaCard(answer))
	}

	return livePage(pageHead("Overview", { badges: [health], actions: [span24.element, copyAs(actions.metrics, "Copy metrics as")] }),
		{ refresh, place: welcome, everyMs: 5000, signal }, welcome, replicas,
		card("Now", stats(...Object.values(figures))),
		card("History", plotGrid(plots)))
}

/** The servers that follow this one, or the lag of this one if it is a standby. */
function replicaCard({ followers = [], performance: { replica_lag_ms: lag } }) {
	if (lag !== undefined) return note(`This server is a standby, ${duration(lag)} behind: it serves reads and takes no writes.`)
	return followers.length > 0 && note(h("a", { href: "#/replica" }, count(followers.length, "server")), ` follow${followers.length > 1 ? "" : "s"} this one, at most ${duration(Math.max(...followers.map((one) => one.lag_ms)))} behind.`)
}

function draw(ring, figures, plots) {
	const now = ring.newest()
	const times = ring.column("ts")
	if (now) {
		figures.topics.set(whole(now.topics))
		figures.records.set(short(now.records), now.records < 1000 ? "" : whole(now.records))
		figures.stored.set(bytes(now.bytes), now.to_free ? `${bytes(now.to_free)} to free` : "")
		figures.memory.set(bytes(now.resident_bytes), `${bytes(now.charged_bytes)} for clients`)
		figures.connections.set(whole(now.connections), count(now.streams, "stream"))
		figures.pressure.set(STEPS[now.pressure] ?? "–", `${duration(now.lag_ms)} late`, now.pressure > 0 ? "warn" : "")
		const lost = ["cap", "ttl", "corrupt", "other"].map((reason) => [reason, ring.sum(`lost_${reason}`)])
		const total = lost.reduce((sum, [, number]) => sum + number, 0)
		figures.lost.set(short(total), lost.filter(([, number]) => number).map(([reason, number]) => `${short(number)} ${reason}`).join(", ") || "none", total ? "warn" : "")
	}
	for (const [name, [, , series]] of Object.entries(PLOTS)) {
		plots[name].set(times, series.map(([label, color, column, isRate]) => ({ name: label, color, area: series.length === 1, values: isRate ? ring.perSecond(column) : ring.column(column) })))
	}
}
