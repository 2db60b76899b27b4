/**
 * Zoom along a horizontal axis: drag over a part, double-click for everything, Ctrl and the wheel, or the keys + - 0 and
 * the arrows.
 */

import { h, put } from "./dom.js"

const DRAG_PX = 4
const TIP_PX = 110 // half of its width

/** A frame around a canvas, with a tip that is hidden when the pointer leaves. `draw` is called when its size changes. */
export function chartFrame(canvas, draw, signal) {
  const tip = h("div.tip", { hidden: true })
  const frame = h("div.timeline-frame", canvas, tip)
  const observer = new ResizeObserver(draw)
  observer.observe(frame)
  signal.addEventListener("abort", () => observer.disconnect())
  canvas.addEventListener("pointerleave", () => (tip.hidden = true))
  const width = () => Math.max(frame.clientWidth, 1)
  return {
    frame,
    width,
    setHeight(height) {
      canvas.setAttribute("viewBox", `0 0 ${width()} ${height}`)
      canvas.setAttribute("height", height)
    },
    /** Show a tip near the pointer. */
    showTip(event, ...content) {
      const box = canvas.getBoundingClientRect()
      put(tip, content)
      tip.hidden = false
      tip.style.left = `${Math.min(Math.max(event.clientX - box.left, TIP_PX), Math.max(box.width - TIP_PX, TIP_PX))}px`
    },
  }
}

/**
 * `domain()` returns the ends of the axis, null while there is none; `look(range)` shows a part, null everything;
 * `drawDrag(range)` draws what is selected; `onClick(value)` is called for a click; `hover(event)` for other movements.
 */
export function zoomable(canvas, { domain, look, drawDrag, onClick, hover }) {
  let drag = null
  const share = (event) => {
    const box = canvas.getBoundingClientRect()
    return Math.min(Math.max((event.clientX - box.left) / Math.max(box.width, 1), 0), 1)
  }
  const valueAt = (event) => {
    const [from, to] = domain()
    return from + share(event) * (to - from)
  }
  const scale = (factor, around = null) => {
    const [from, to] = domain()
    const at = around ?? (from + to) / 2
    look([at - (at - from) * factor, at + (to - at) * factor])
  }
  const shift = (part) => {
    const [from, to] = domain()
    look([from + (to - from) * part, to + (to - from) * part])
  }
  const keys = { "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), 0: () => look(null), ArrowLeft: () => shift(-0.25), ArrowRight: () => shift(0.25) }
  const moved = (event) => Math.abs(event.clientX - drag.x) > DRAG_PX
  const selected = (event) => [drag.from, valueAt(event)].sort((a, b) => a - b)

  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key] || !domain() || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    keys[event.key]()
  })
  canvas.addEventListener("wheel", (event) => {
    if (!domain() || !(event.ctrlKey || event.metaKey)) return
    event.preventDefault()
    scale(event.deltaY > 0 ? 1.4 : 1 / 1.4, valueAt(event))
  }, { passive: false })
  canvas.addEventListener("pointerdown", (event) => {
    if (!domain() || event.button !== 0) return
    drag = { from: valueAt(event), x: event.clientX }
    canvas.setPointerCapture(event.pointerId)
  })
  canvas.addEventListener("pointermove", (event) => {
    if (!domain()) return
    hover(event, valueAt(event))
    if (drag && moved(event)) drawDrag(selected(event))
  })
  canvas.addEventListener("pointerup", (event) => {
    if (!drag) return
    const range = moved(event) ? selected(event) : null
    drag = null
    if (range) look(range)
    else onClick(valueAt(event))
  })
  canvas.addEventListener("dblclick", () => look(null))
  return { scale }
}
