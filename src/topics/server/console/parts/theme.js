/** Light, dark, or what the system says. The choice is kept in this browser. */

const KEY = "topics-console-theme"
export const THEMES = ["system", "light", "dark"]

export const theme = () => (THEMES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "system")

export function setTheme(next) {
  if (next === "system") localStorage.removeItem(KEY)
  else localStorage.setItem(KEY, next)
  applyTheme()
}

export function applyTheme() {
  document.documentElement.dataset.theme = theme()
}
