/**
 * The address of what a page shows. Filters, jumps, tabs, ranges and the open record are in the query of the hash, so that
 * a link shows the same, and Back returns to what was shown before.
 */

/** The query of the present address. */
export function query() {
  return new URLSearchParams(location.hash.split("?")[1] ?? "")
}

/** Change parts of the query; null or "" removes one. With `push`, Back returns to the address before. */
export function setQuery(changes, { push = false } = {}) {
  const [path] = (location.hash || "#/").split("?")
  const next = query()
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") next.delete(name)
    else next.set(name, String(value))
  }
  const text = next.toString()
  const hash = text ? `${path}?${text}` : path
  if (hash === (location.hash || "#/")) return
  if (push) history.pushState(null, "", hash)
  else history.replaceState(null, "", hash)
}

/** Call `work` once the calls have stopped for a moment. */
export function debounce(work, ms = 250) {
  let timer = 0
  return (...args) => {
    clearTimeout(timer)
    timer = setTimeout(() => work(...args), ms)
  }
}
