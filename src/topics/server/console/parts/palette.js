/** The keyboard: a palette over pages, topics and actions, a list of the keys, and movement between rows. */

import { h, icon, moveRow, put, span } from "./dom.js"
import { listAll, session } from "./session.js"
import { dialog } from "./ui.js"

const MOST_SHOWN = 12
const MOST_TOPICS = 20_000

const KEYS = [
	["Ctrl K", "open anything: a page, a topic, an action"], ["/", "move to the search or filter of the page"],
	["j and k", "move to the next and the previous row"], ["Enter", "open the row"], ["Escape", "close, or leave a field"],
	["g, then a letter", "go to the page that begins with it"], ["?", "show these keys"],
]

/** Listen to the keys of the console. `pages` are `[label, href, icon]`, `actions` are `[label, run, icon]`. */
export function listenToKeys(main, { pages, actions }) {
	let goUntil = 0
	addEventListener("keydown", (event) => {
		if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
			event.preventDefault()
			if (!document.querySelector("dialog[open]")) openPalette(pages, actions())
			return
		}
		if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return
		const active = document.activeElement
		if (/^(INPUT|TEXTAREA|SELECT)$/.test(active?.tagName ?? "") && active.type !== "checkbox") {
			if (event.key === "Escape") active.blur()
			return
		}
		if (goUntil > performance.now()) {
			goUntil = 0
			const found = pages.filter(([label]) => label[0].toLowerCase() === event.key)
			if (found.length) {
				const at = found.findIndex(([, href]) => href === location.hash.split("?")[0]) // the next one with this letter
				location.hash = found[(at + 1) % found.length][1]
				return event.preventDefault()
			}
		}
		const act = {
			"/": () => main.querySelector("input[type=search], [data-search]")?.focus(),
			"?": showKeys, j: () => moveRow(main, 1), k: () => moveRow(main, -1),
			g: () => (goUntil = performance.now() + 1500),
			Escape: () => active?.closest("details[open]")?.removeAttribute("open"),
		}[event.key]
		if (!act) return
		event.preventDefault()
		act()
	})
}

export function showKeys() {
	dialog("Keys", () => h("dl.facts.keys", KEYS.map(([key, text]) => [h("dt", h("kbd", key)), h("dd", text)])))
}

/** Open the palette. Topics are listed while one types. */
export function openPalette(pages, actions) {
	let found = []
	let chosen = 0
	const entries = [
		...pages.map(([label, href, sign]) => ({ label, kind: "page", sign, run: () => (location.hash = href) })),
		...actions.map(([label, run, sign]) => ({ label, kind: "action", sign, run })),
	]
	const list = h("div.palette-list", { role: "listbox", id: "palette-list", "aria-label": "Results" })
	const search = h("input", {
		type: "text", role: "combobox", class: "palette-input", placeholder: "Go to a page, a topic or an action", autocomplete: "off", spellcheck: false,
		"aria-label": "Go to a page, a topic or an action", "aria-controls": list.id, "aria-expanded": "true", "aria-autocomplete": "list",
		on: {
			input: () => {
				chosen = 0
				draw()
			},
			keydown: (event) => {
				const step = { ArrowDown: 1, ArrowUp: -1 }[event.key]
				if (step && found.length) {
					event.preventDefault()
					chosen = (chosen + step + found.length) % found.length
					draw()
				} else if (event.key === "Enter") {
					event.preventDefault()
					choose(found[chosen])
				}
			},
		},
	})

	function choose(entry) {
		if (!entry) return
		element.close()
		setTimeout(() => entry.run()) // after the dialog has returned the focus
	}

	function draw() {
		found = match(entries, search.value).slice(0, MOST_SHOWN)
		put(list, found.map((entry, at) => h("div", {
			role: "option", id: `palette-${at}`, class: "palette-entry", "aria-selected": String(at === chosen),
			on: { click: () => choose(entry) },
		}, icon(entry.sign), span("label", entry.label), span("faint", entry.kind))),
		found.length === 0 && h("p.note", "Nothing matches."))
		search.setAttribute("aria-activedescendant", found.length ? `palette-${chosen}` : "")
	}

	const element = dialog("Go to", () => [search, list], { class: "palette", bare: true })
	search.focus()
	draw()
	if (session.can("read")) {
		void listAll("/v0/topics", "topics", { most: MOST_TOPICS }).then((rows) => {
			for (const { topic, type } of rows) {
				const queue = type === "queue"
				entries.push({ label: topic, kind: queue ? "queue" : "topic", sign: queue ? "queues" : "topics", run: () => (location.hash = `#/${queue ? "queues" : "topics"}/${encodeURIComponent(topic)}`) })
			}
			draw()
		}, () => {})
	}
}

/** The entries that have all words of the text: those that begin with it first, then those with a word that does. */
function match(entries, text) {
	const wanted = text.trim().toLowerCase()
	if (!wanted) return entries
	const words = wanted.split(/\s+/)
	const rank = (label) => (label.startsWith(wanted) ? 0 : label.split(/[\s._:-]/).some((part) => part.startsWith(wanted)) ? 1 : 2)
	return entries.map((entry) => ({ entry, label: entry.label.toLowerCase() }))
		.filter(({ label }) => words.every((word) => label.includes(word)))
		.sort((a, b) => rank(a.label) - rank(b.label) || a.label.length - b.label.length)
		.map(({ entry }) => entry)
}
