/**
 * Elements from code. All content goes through text nodes and attributes, so that data is never read as markup.
 */

const SVG = "http://www.w3.org/2000/svg"

/** Create an HTML element. Props: `class`, `on` (listeners), properties of the element, or attributes with a dash. */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children)
}

/** Create an SVG element. All props but `on` are attributes. */
export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS(SVG, tag)
  for (const [name, value] of Object.entries(props)) {
    if (name === "on") listen(element, value)
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value))
  }
  add(element, children)
  return element
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue
    if (name === "class") element.className = value
    else if (name === "on") listen(element, value)
    else if (name.includes("-") || name === "role" || name === "for" || name === "list") element.setAttribute(name, String(value))
    else element[name] = value
  }
  add(element, children)
  return element
}

function listen(element, listeners) {
  for (const [event, listener] of Object.entries(listeners)) element.addEventListener(event, listener)
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue
    element.append(child instanceof Node ? child : String(child))
  }
}

/** Replace the content of an element. */
export function put(element, ...children) {
  element.replaceChildren()
  add(element, children)
  return element
}

const FOCUSABLE = "a, button, summary, input, select, [tabindex]"

/** Replace the content of an element that is drawn again and again. Focus stays on the control at the same place. */
export function redraw(element, ...children) {
  const at = [...element.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement)
  put(element, ...children)
  if (at >= 0) [...element.querySelectorAll(FOCUSABLE)].at(at)?.focus({ preventScroll: true })
}

/** Whether something in the element is open that a redraw would close. */
export function isBusy(element) {
  return element.querySelector("details[open]") !== null
}

/** Set the text of an element if it differs, so that screen readers and selections are left alone. */
export function setText(element, text) {
  const value = String(text)
  if (element.textContent !== value) element.textContent = value
}

/** An element that only screen readers present. */
export function hidden(text) {
  return h("span", { class: "visually-hidden" }, text)
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
