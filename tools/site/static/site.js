// A button on each block of code that copies it.
addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = Object.assign(document.createElement("button"), { className: "copy", type: "button", textContent: "copy" })
    button.setAttribute("aria-label", "copy this block")
    button.onclick = async () => {
      await navigator.clipboard.writeText(block.querySelector("pre").textContent.trimEnd())
      button.textContent = "copied"
      setTimeout(() => (button.textContent = "copy"), 1500)
    }
    block.append(button)
  }
})

// The summary of a search result: the first sentence with the most of the words, not a cut-out of tables and code.
const LONGEST = 280 // characters of a summary

function sentences(html, anchor) {
  const page = new DOMParser().parseFromString(html, "text/html")
  const main = page.querySelector('[role="main"]') ?? page.body
  const part = (anchor && main.querySelector(anchor)) || main
  const blocks = [...part.querySelectorAll("p, li, td")].filter((one) => !one.querySelector("p, li, pre, table"))
  const texts = blocks.map((one) => [one.textContent.replace(/\s+/g, " ").trim(), one.localName === "td" ? 0 : 1])
  // A full stop ends a sentence only before a space and an upper-case letter: not in `topics.client` or `e.g. this`.
  return texts.flatMap(([text, prose]) => text.split(/(?<=[.!?:]) (?=[A-Z`“"(])/).map((one) => [one, prose]))
    .filter(([text]) => text.split(" ").length > 3)
}

function summary(html, words, anchor) {
  const wanted = [...words].map((word) => new RegExp(`\\b${RegExp.escape?.(word) ?? word.replace(/\W/g, "\\$&")}`, "i"))
  const score = ([text, prose]) => 4 * wanted.filter((word) => word.test(text)).length + 2 * prose + /[.!?]$/.test(text)
  const found = sentences(html, anchor)
  const best = found.reduce((one, other) => (score(other) > score(one) ? other : one), found[0])
  if (!best) return null
  const [text] = best
  const cut = text.length > LONGEST ? `${text.slice(0, text.lastIndexOf(" ", LONGEST))} …` : text
  return Object.assign(document.createElement("p"), { className: "context", textContent: cut })
}

// `searchtools.js`, which only the page of the search has, defines it after this file.
addEventListener("DOMContentLoaded", () => {
  if (typeof Search !== "undefined") Search.makeSearchSummary = summary
})
