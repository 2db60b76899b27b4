/** Samples that the server keeps. */

const HOUR_MS = 3_600_000

/** The samples of the last hour, one array per column. */
export class Ring {
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
    const oldest = this.last - HOUR_MS
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
