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
