/**
 * Elements from code. All content goes through text nodes and attributes, so that data is never read as markup.
 */

const SVG = "http://www.w3.org/2000/svg"

/**
 * Create an HTML element: `h("div.toolbar", { hidden: true }, ...children)`. Props may be left out: `on` (listeners),
 * properties of the element, or attributes with a dash.
 */
export function h(name, ...content) {
	return fill(name, content, (tag) => document.createElement(tag))
}

/** Create an SVG element. All props but `on` are attributes. */
export function svg(name, ...content) {
	return fill(name, content, (tag) => document.createElementNS(SVG, tag))
}

const isNothing = (value) => value === null || value === undefined || value === false
const ATTRIBUTE = /-|^(class|role|for|list)$/

function fill(name, content, create) {
	const [tag, ...classes] = name.split(".")
	const element = create(tag)
	const props = content[0]?.constructor === Object ? content.shift() : {}
	if (classes.length) element.setAttribute("class", classes.join(" "))
	for (const [name, value] of Object.entries(props)) {
		if (isNothing(value)) continue
		if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener)
		else if (element.namespaceURI === SVG || ATTRIBUTE.test(name)) element.setAttribute(name, String(value))
		else element[name] = value
	}
	return add(element, content)
}

function add(element, children) {
	element.append(...children.flat(Infinity).filter((child) => !isNothing(child)))
	return element
}

/** Replace the content of an element. */
export function put(element, ...children) {
	element.replaceChildren()
	return add(element, children)
}

const FOCUSABLE = "a, button, summary, input, select, [tabindex]"

/** Replace the content of an element that is drawn again and again. Focus stays on the control at the same place. */
export function redraw(element, ...children) {
	const at = [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement)
	put(element, ...children)
	if (at >= 0) [...element.querySelectorAll(FOCUSABLE)].at(at)?.focus({ preventScroll: true })
}

/** Show an element in a place, unless it or one with the same text is there already. */
export function swap(place, element) {
	if (element.parentNode !== place && element.textContent !== place.textContent) put(place, element)
}

/** Whether something in the element is open that a redraw would close. */
export function isBusy(element) {
	return element.querySelector("details[open], :popover-open") !== null
}

/** Set the text of an element if it differs, so that screen readers and selections are left alone. */
export function setText(element, text) {
	if (element.textContent !== String(text)) element.textContent = text
}

/** An element that only screen readers present. */
export function hidden(text) {
	return h("span.visually-hidden", text)
}

const ROWS = ".record > summary, .rows .name :is(a, button), tbody [data-row]"

/** Focus the next row in an element, or the first one in view. Return whether there is one. */
export function moveRow(element, step) {
	const top = (row) => row.getBoundingClientRect().top
	const rows = [...element.querySelectorAll(ROWS)].sort((a, b) => top(a) - top(b))
	const at = rows.indexOf(document.activeElement)
	const next = at < 0 ? step > 0 && rows.find((row) => top(row) >= 0) : rows[at + step]
	if (!next) return false
	next.focus({ preventScroll: true })
	next.scrollIntoView({ block: "nearest" })
	return true
}

export function span(kind, ...content) {
	return h("span", { class: kind }, content)
}

/** The colour of a series or a state. */
export function swatch(kind) {
	return h("i", { class: `swatch ${kind}` })
}

// --- icons, as lines on a grid of 16 pixels. They repeat what a label says, so that screen readers skip them.

const PATHS = {
	overview: "M2 9.5 5.5 6l3 3L14 3M2 13.5h12",
	map: "M4 6a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM12 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM4 14a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM6 4.5l4 2.5M6 11.5l4-2.5",
	topics: "M2 3.5h12M2 8h8M2 12.5h11",
	queues: "M2.5 2.5h11v4h-11zM2.5 9.5h11v4h-11z",
	schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 4.5V8l2.5 1.5",
	routers: "M1.5 8H6l3-4.5h5M6 8l3 4.5h5M12 1.5l2 2-2 2M12 10.5l2 2-2 2",
	consumers: "M8 2v8M4.5 6.5 8 10l3.5-3.5M2.5 13.5h11",
	pipelines: "M2 4h5.5v8H14M11.5 9.5 14 12l-2.5 2.5",
	replica: "M3 5c0-3 10-3 10 0s-10 3-10 0v6c0 3 10 3 10 0V5",
	sql: "M2 3h12v10H2zM4.5 6l2 2-2 2M8.5 10H11",
	search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.7 10.7 14 14",
	light: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M13 3l-1 1M4 12l-1 1",
	dark: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z",
	system: "M2 3h12v8H2zM6 14h4M8 11v3",
	plus: "M8 3v10M3 8h10",
	trash: "M2.5 4.5h11M6 4.5V2.5h4v2M4 4.5l.7 9h6.6l.7-9",
	settings: "M2 5h6M12 5h2M10 3v4M2 11h2M8 11h6M6 9v4",
	edit: "M3 13l.7-3L11 2.7 13.3 5 6 12.3z",
	redrive: "M13 8a5 5 0 1 1-1.6-3.7M13 1.5v3.5H9.5",
}

export function icon(name) {
	return svg("svg.icon", { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" }, svg("path", { d: PATHS[name] }))
}
