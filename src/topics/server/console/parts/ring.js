/** Samples that the server keeps. */

import { session } from "./session.js"

const HOUR_MS = 3_600_000

/** The samples of the last hour, or of another time, one array per column. */
export class Ring {
	keptMs = HOUR_MS
	columns = []
	rows = []
	intervalMs = 5000

	get last() {
		return this.rows.at(-1)?.[0] ?? 0
	}

	add({ columns, rows, interval_ms }) {
		if (rows.length && rows[0][0] < this.last) this.rows = []
		this.columns = columns
		this.intervalMs = interval_ms
		this.rows.push(...rows)
		const oldest = this.last - this.keptMs
		while (this.rows.length && this.rows[0][0] < oldest) this.rows.shift()
	}

	column(name) {
		const at = this.columns.indexOf(name)
		return this.rows.map((row) => row[at] ?? 0)
	}

	perSecond(name) {
		return this.column(name).map((value) => Math.max(value, 0) / (this.intervalMs / 1000))
	}

	sum(name) {
		return this.column(name).reduce((total, value) => total + Math.max(value, 0), 0)
	}

	newest() {
		const row = this.rows.at(-1)
		return row && Object.fromEntries(this.columns.map((name, at) => [name, row[at]]))
	}
}

/** Rates of numbers that grow, between two looks at them. */
export class Rates {
	#before = new Map()

	/** Note a number. Return its growth per second since the last look, null if there was none in this epoch. */
	note(key, epoch, value) {
		const now = performance.now()
		const last = this.#before.get(key)
		this.#before.set(key, { epoch, value, now })
		return last?.epoch === epoch && now > last.now ? Math.max(value - last.value, 0) / ((now - last.now) / 1000) : null
	}
}

const TREND_MS = 120_000 // what estimates look at

/** Samples of the lag and the progress of consumers and routers, by "consumer TOPIC NAME" and "router TOPIC NAME". */
export class Readers {
	series = new Map()
	last = 0
	intervalMs = 15_000

	add({ columns, rows, interval_ms }) {
		this.intervalMs = interval_ms
		for (const [ts, ...values] of rows) {
			this.last = Math.max(this.last, ts)
			for (let at = 0; at < values.length; at += 2) {
				if (values[at] >= 0) this.note(columns[at + 1].slice("lag ".length), ts, values[at], values[at + 1])
			}
		}
	}

	/** Add a figure that the page has seen itself. */
	note(key, ts, lag, done) {
		if (!this.series.has(key)) this.series.set(key, [])
		const points = this.series.get(key)
		if (points.length && points.at(-1).ts >= ts) return
		points.push({ ts, lag, done })
		while (points[0].ts < ts - HOUR_MS) points.shift()
	}

	of(key) {
		return this.series.get(key) ?? []
	}

	/** How fast lag and progress change, per second, over the last two minutes; null without two samples. */
	trend(key) {
		const points = this.of(key)
		const now = points.at(-1)
		const then = now && points.find((point) => point.ts >= now.ts - TREND_MS)
		if (!then || then === now) return null
		const seconds = (now.ts - then.ts) / 1000
		return { lag: (now.lag - then.lag) / seconds, done: Math.max(now.done - then.done, 0) / seconds }
	}
}

/** Read new samples of readers, if there can be some. */
export async function readReaders(readers, signal) {
	if (session.now() < readers.last + readers.intervalMs) return
	readers.add(await session.get(`/v0/samples?readers=true&after=${readers.last}`, signal))
}
