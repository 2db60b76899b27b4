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
  return element.querySelector("details[open]") !== null
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
