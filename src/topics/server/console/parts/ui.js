/** The pieces that pages are made of. */

import { h, hidden, icon, put, span, swap } from "./dom.js"
import { count, short, whole } from "./format.js"
import { entry, poll, session, setQuery } from "./session.js"
import { asCurl, asJavaScript, asPython } from "./snippets.js"
import { table } from "./table.js"

// --- small pieces

/** A button. The label is a text, or a list with an icon in it. */
export function button(label, onClick, { kind = "", title, disabled = false, ...rest } = {}) {
	return h("button", { type: "button", class: `button ${kind}`, title, disabled, on: { click: onClick }, ...rest }, label)
}

/** A button for an action that needs scopes. Null if the key does not have them: see `missingNote`. */
export function allowed(scopes, name, make) {
	return session.can(scopes, name) ? make() : null
}

/** Say which of these scopes the key does not have, or that a name is beyond its prefixes. Null if nothing is missing. */
export function missingNote(scopes, name = null) {
	if (!session.who) return null
	const missing = session.missing(scopes)
	if (name !== null && !session.covers(name)) {
		return note(`The prefixes of your key do not cover ${name}: actions are hidden.`)
	}
	if (missing.length === 0) return null
	const [scope, it] = missing.length > 1 ? ["scopes", "them"] : ["scope", "it"]
	return note(`Your key lacks the ${scope} ${new Intl.ListFormat("en-GB").format(missing)}: the actions that need ${it} are hidden.`)
}

export function note(...content) {
	return h("p.note", content)
}

/** A text that screen readers present when it changes. */
export function liveText() {
	return h("span.summary", { role: "status" })
}

export function loading(text) {
	return h("p.loading", text)
}

export function badge(text, kind = "") {
	return h("span", { class: `badge ${kind}` }, text)
}

export function card(title, content) {
	return h("section.card", h("header", h("h2", title)), content)
}

/** One figure with its name. `set` changes the value. */
export function stat(label, value = "–", { title } = {}) {
	const shown = h("dd", value)
	const detail = h("dd.detail")
	return {
		element: h("div.stat", { title }, h("dt", label), shown, detail),
		set(text, more = "", kind = "") {
			if (shown.textContent !== String(text)) put(shown, text)
			if (detail.textContent !== String(more)) put(detail, more)
			shown.className = kind
		},
	}
}

export function stats(...items) {
	return h("dl.stats", items.map((item) => item.element))
}

/** What to show where there is nothing yet, with the command that changes that. */
export function empty(title, text, command = null, ...more) {
	return h("div.empty", h("p.title", title), h("p", text), command && code(command), more)
}

/** A command that sends JSON to the server. */
export function curl(path, body, method = "") {
	return `curl ${method && `-X ${method} `}${location.origin}${path} -H 'content-type: application/json' -d '${JSON.stringify(body)}'`
}

/** What a page shows while there are no topics. */
export function noTopics() {
	return empty("Nothing here yet", "This command writes a first record, and creates its topic:", curl("/v0/topics/orders", { records: [{ data: { sku: "V60", qty: 1 } }] }))
}

/** What the pages of a topic and of a queue share. `gone(error)` shows the error, or that there is none and how to create it. */
export function pageOfOne(kind, name, left, command) {
	const end = new AbortController()
	const one = {
		end, problem: h("div"), body: h("div.stack"), head: null, signal: AbortSignal.any([left, end.signal]),
		gone(error) {
			if (error && !["topic_not_found", "not_a_queue"].includes(error.code)) return put(one.problem, failure(error))
			end.abort()
			poll(async () => {
				const found = await entry(name, left)
				if (found && (kind === "topic" || found.type === kind)) dispatchEvent(new Event("hashchange")) // opens the page again
			}, { everyMs: 3000, signal: left })
			one.head.querySelector(".actions").hidden = true
			put(one.problem)
			put(one.body, h("section.card.flush", empty(`There is no ${kind} ${name}`, "It may have been deleted. This command creates it:", command, h("p", h("a", { href: `#/${kind}s` }, `Show all ${kind}s`)))))
		},
	}
	return one
}

/** A command with a button that copies it. */
export function code(text) {
	return h("div.code", h("pre", { tabIndex: 0 }, text), copyButton(() => text))
}

export function copyButton(text, label = "Copy") {
	return button(label, async (event) => {
		const target = event.currentTarget
		const ok = await copy(text())
		put(target, ok ? "Copied" : "Press Ctrl-C")
		setTimeout(() => put(target, label), 1500)
	}, { kind: "small" })
}

async function copy(text) {
	try {
		await navigator.clipboard.writeText(text)
		return true
	} catch {
		const area = h("textarea.visually-hidden", { value: text })
		document.body.append(area)
		area.select()
		const ok = document.execCommand("copy")
		area.remove()
		return ok
	}
}

// --- errors and messages

const NEXT = {
	topic_not_found: "It may have been deleted. Go back to the list of topics.",
	replica_unavailable: "The bucket of the replica does not answer. Other topics are not affected.",
	router_cycle: "Choose another destination, or allow the cycle: a record then stops after 16 topics.",
	not_ready: "The server is starting. This page continues by itself.",
	unreachable: "Check that the server runs. This page continues by itself.",
}

/** An error with its code and the next step. */
export function failure(error) {
	const code = error?.code ?? "error"
	const lines = [h("p", h("strong", error?.message ?? String(error)), " ", h("code", code))]
	if (error?.detail?.field) lines.push(h("p", "Check the field ", h("code", error.detail.field), "."))
	if (NEXT[code]) lines.push(h("p", NEXT[code]))
	return alarm(lines)
}

export function alarm(...content) {
	return h("div.failure", { role: "alert" }, content)
}

/**
 * A page under its head, which calls `refresh` every `everyMs`, or after as many ms as it returns, but the second time after a
 * second, because rates need two looks. `scopes` are those of its actions.
 */
export function livePage(head, { refresh, place, signal, needs = "read", scopes = needs, name = null, everyMs = 3000 }, ...content) {
	const problem = h("div")
	const schedule = { everyMs: 1000, signal, onError: (error) => put(problem, failure(error)) }
	let next = 1000
	const refused = missingNote(needs, name)
	if (refused) put(place)
	else {
		poll(async () => {
			schedule.everyMs = next
			next = (await refresh()) ?? everyMs
			put(problem)
		}, schedule)
	}
	return [head, refused ?? missingNote(scopes), problem, content]
}

/** A page with a table of the rows that `load` returns, and a search in what `nameOf` returns. `blank` says that there are none. */
export function tablePage(title, { noun, columns, sortBy, load, nameOf, rowKey = nameOf, blank, scopes, query, signal, actions, above }) {
	const search = input({
		type: "search", placeholder: `Search ${noun}s`, "aria-label": `Search ${noun}s by a part of their names`, value: query.get("search") ?? "",
		on: {
			input: () => {
				setQuery({ search: search.value.trim() })
				draw()
			},
		},
	})
	const summary = liveText()
	const place = h("div", loading(`Loading ${noun}s`))
	const order = query.get("sort") ?? sortBy
	const list = table({
		label: title, columns: typeof columns === "function" ? columns(refresh) : columns, signal, rowKey, class: `${noun}s`,
		sortBy: order.replace("-", ""), descending: order.startsWith("-"), onSort: (key) => setQuery({ sort: key === sortBy ? null : key }),
	})
	let all = null

	async function refresh() {
		all = await load()
		draw()
		return Math.max(3000, all.length * 5) // a list of 5,000 is read every 25 seconds
	}

	function draw() {
		if (all === null) return
		const wanted = search.value.trim()
		const rows = all.filter((row) => nameOf(row).toLowerCase().includes(wanted.toLowerCase()))
		put(summary, wanted ? `${whole(rows.length)} of ${count(all.length, noun)}` : count(all.length, noun))
		list.set(rows)
		swap(place, rows.length ? list.element : all.length ? empty(`No ${noun} matches`, `No name contains "${wanted}".`) : blank())
	}

	return livePage(pageHead(title, { actions }), { refresh, place, signal, scopes }, above, h("div.toolbar", search, summary), h("section.card.flush", place))
}

/** The button that opens the form for something new. The address of the page can ask for the form, too. */
export function createButton(label, query, create) {
	if (query.get("new") && session.can("admin")) queueMicrotask(create)
	return allowed("admin", null, () => button([icon("plus"), label], create, { kind: "primary" }))
}

let toasts = null

/** Show a message for a few seconds. */
export function toast(text, kind = "") {
	toasts ??= document.body.appendChild(h("div.toasts", { role: "status", "aria-live": "polite" }))
	const message = h("div", { class: `toast ${kind}` }, text)
	toasts.append(message)
	setTimeout(() => message.remove(), 5000)
}

/** Do something, show what `said` makes of the answer, or the error, and read everything again. */
export async function attempt(work, said, again) {
	try {
		toast(...[said(await work())].flat())
	} catch (error) {
		toast(error.message, "bad")
	}
	await again()
}

// --- dialogs

/** Open a dialog. `build` gets a function that closes it, and returns its content. Focus returns to where it was. */
export function dialog(title, build, { class: extra = "", bare = false } = {}) {
	const before = document.activeElement
	const close = () => element.close()
	const element = h("dialog", {
		class: `dialog ${extra}`, "aria-label": title,
		on: {
			close: () => {
				element.remove()
				before?.focus?.()
			},
			click: (event) => event.target === element && close(),
		},
	})
	element.append(
		...(bare ? [] : [h("header", h("h2", title), button("Close", close, { kind: "quiet" }))]),
		h("div.content", build(close)),
	)
	document.body.append(element)
	element.showModal()
	return element
}

/** Open a dialog with a form. `make(done)` returns it; `done` closes the dialog, and calls `then` with what it gets. */
export function formDialog(title, make, then) {
	return dialog(title, (close) => make((...results) => {
		close()
		void then(...results)
	}))
}

/** Ask before something is done. The options are those of `form`; `then` gets the answer. */
export function ask(title, words, options, then) {
	formDialog(title, (done) => form(h("p", words), { kind: "danger", done, ...options }), then)
}

/** A row of a list of facts. */
export function fact(name, value) {
	return [h("dt", name), h("dd", value)]
}

/** A labelled control with its help text. */
export function field(label, control, help = null) {
	control.id ||= `field-${Math.random().toString(36).slice(2)}`
	const text = help && h("small", { id: `${control.id}-help` }, help)
	if (text) control.setAttribute("aria-describedby", text.id)
	return h("div.field", h("label", { for: control.id }, label), control, text)
}

export function input(props = {}) {
	return h("input", { type: "text", autocomplete: "off", spellcheck: false, ...props })
}

export function select(choices, value, props = {}) {
	const element = h("select", props, choices.map(([choice, label]) => h("option", { value: choice }, label)))
	element.value = value
	return element
}

/** A row of buttons of which one is pressed. `onPick` gets its value. */
export function segmented(label, choices, value, onPick) {
	const buttons = choices.map(([choice, text]) => h("button", { type: "button", on: { click: () => (set(choice), onPick(choice)) } }, text))
	const set = (chosen) => choices.forEach(([choice], at) => buttons[at].setAttribute("aria-pressed", String(choice === chosen)))
	set(value)
	return { element: h("div.segmented", { role: "group", "aria-label": label }, buttons), set }
}

/** Tabs `[key, label]` over a panel. `onPick(key)` is called when another one is chosen, also with the arrow keys. */
export function tabs(label, choices, panel, onPick) {
	const buttons = choices.map(([key, text]) => h("button", {
		type: "button", role: "tab", id: `tab-${key}`, "aria-controls": panel.id,
		on: {
			click: () => onPick(key),
			keydown: (event) => {
				const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key]
				if (!step) return
				const at = (choices.findIndex(([one]) => one === key) + step + choices.length) % choices.length
				onPick(choices[at][0])
				buttons[at].focus()
			},
		},
	}, text))
	return {
		element: h("div.tabs", { role: "tablist", "aria-label": label }, buttons),
		set: (chosen) => choices.forEach(([key], at) => {
			buttons[at].setAttribute("aria-selected", String(key === chosen))
			buttons[at].tabIndex = key === chosen ? 0 : -1
		}),
		/** Show a number behind the name of a tab; 0 shows none. */
		count(key, number, kind = "") {
			const at = choices.findIndex(([one]) => one === key)
			put(buttons[at], choices[at][1], number ? h("span", { class: `count ${kind}` }, short(number)) : "")
		},
	}
}

export function checkbox(label, checked, help = null) {
	const control = h("input", { type: "checkbox", checked })
	const element = field(label, control, help)
	element.classList.add("check")
	element.prepend(control)
	return { control, element }
}

/**
 * A form that sends what `action` returns. Then `said` is shown, or what it makes of the answer, and `done` gets the answer. If
 * `submit` takes the place of this and returns `[text, ...results]`, the text is shown and `done` gets the results.
 */
export function form(content, { label, action = null, said, submit, done, kind = "primary", extra = [], onError = () => {} }) {
	const problem = h("div")
	const main = h("button", { type: "submit", class: `button ${kind}` }, label)
	const element = h("form.form", {
		on: {
			submit: async (event) => {
				event.preventDefault()
				put(problem)
				main.disabled = true
				try {
					const [text, ...results] = (await (submit ?? send)()) ?? []
					if (!text) return
					toast(text)
					await done(...results)
				} catch (error) {
					put(problem, failure(error))
					onError(error)
				} finally {
					main.disabled = false
				}
			},
		},
	}, content, problem, h("footer", extra, action && copyAs(action), main))
	return Object.assign(element, { main })

	async function send() {
		const answer = await session.run(action())
		return [typeof said === "function" ? said(answer) : said, answer]
	}
}

// --- copy as

/** A menu that copies an action as curl, Python or JavaScript. */
export function copyAs(action, label = "Copy as") {
	const ways = { curl: asCurl, Python: asPython, JavaScript: asJavaScript }
	const choices = h("div.choices", { popover: "auto", on: { beforetoggle: () => requestAnimationFrame(place) } }, Object.entries(ways).map(([name, render]) => h("button", {
		type: "button",
		on: {
			click: async () => {
				choices.hidePopover()
				try {
					const ok = await copy(render(action(), session.key))
					toast(ok ? `Copied as ${name}.` : "The browser did not allow to copy.", ok ? "" : "bad")
				} catch (error) {
					toast(error.message, "bad")
				}
			},
		},
	}, name)))
	const opener = h("button.button.small.menu", { type: "button", popoverTargetElement: choices }, label)

	/** Put the choices under the button, or over it where there is no room. */
	function place() {
		const [box, size] = [opener, choices].map((one) => one.getBoundingClientRect())
		choices.style.top = `${box.bottom + 4 + size.height < innerHeight ? box.bottom + 4 : box.top - 4 - size.height}px`
		choices.style.left = `${Math.max(Math.min(box.right - size.width, innerWidth - size.width - 8), 8)}px`
	}

	return [opener, choices]
}

/** A number that should be 0. */
export function warned(number) {
	return span(number ? "warn" : "faint", short(number))
}

/** A cell of a column of numbers: a whole number, or what is given. */
export function num(...content) {
	return h("td.number", content.map((one) => (typeof one === "number" ? whole(one) : one)))
}

/** A table. A head is an element or a text; one that ends in "#" is of numbers. A row is an element, or a list of cells or their content. */
export function plainTable(label, heads, rows, kind = "") {
	const names = heads.map((head) => (head instanceof Node ? "" : head.replace(/#$/, "")))
	const table = h("table", { class: `plain ${kind}` },
		h("thead", h("tr", heads.map((head, at) => (head instanceof Node ? h("td", head) : h("th", { scope: "col", class: head.endsWith("#") ? "number" : "" }, names[at]))))),
		h("tbody", rows.map((row) => (row instanceof Node ? row
			: h("tr", row.filter((cell) => cell !== false).map((cell) => (cell instanceof HTMLTableCellElement ? cell : h("td", cell))))))))
	for (const row of table.tBodies[0].rows) if (row.cells.length === names.length) names.forEach((name, at) => name && (row.cells[at].dataset.label = name))
	return h("div.scroll", { tabIndex: 0, role: "region", "aria-label": label }, table)
}

export function pageHead(title, { crumbs = [], badges = [], actions = [] } = {}) {
	return h("div.page-head",
		h("div",
			crumbs.length > 0 && h("nav.crumbs", { "aria-label": "You are here" }, crumbs.map(([label, href]) => h("a", { href }, label))),
			h("h1", { tabIndex: -1 }, title, hidden(" "), badges)),
		h("div.actions", actions))
}
