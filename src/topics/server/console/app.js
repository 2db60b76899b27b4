/**
 * The console: a shell, and one page at a time by the hash of the URL. A page is a module with `title` and `show(context)`, which
 * returns its elements. What it begins ends with `context.signal`.
 */

import { h, hidden, icon, put, span } from "./parts/dom.js"
import { listenToKeys, openPalette, showKeys } from "./parts/palette.js"
import { session } from "./parts/session.js"
import { button, failure, pageHead } from "./parts/ui.js"
import * as consumers from "./pages/consumers.js"
import * as keys from "./pages/keys.js"
import * as map from "./pages/map.js"
import * as overview from "./pages/overview.js"
import * as pipelines from "./pages/pipelines.js"
import * as queue from "./pages/queue.js"
import * as replica from "./pages/replica.js"
import * as routers from "./pages/routers.js"
import * as schedules from "./pages/schedules.js"
import * as signIn from "./pages/signin.js"
import * as sql from "./pages/sql.js"
import * as topic from "./pages/topic.js"
import * as topics from "./pages/topics.js"

const PAGES = { overview, map, topics, queues: topics.queues, schedules, routers, consumers, pipelines, replica, sql }
const PAGES_OF_ONE = { topics: topic, queues: queue }
const noSuchPage = {
	title: "No such page",
	show: () => [pageHead("No such page"), h("p", h("a", { href: "#/" }, "Go to the overview"))],
}
const NAVIGATION = Object.entries(PAGES).map(([name, page]) => [page.title, name === "overview" ? "#/" : `#/${name}`, name])

// The choice of colours is kept in this browser.
const THEME_KEY = "topics-console-theme"
const THEMES = ["system", "light", "dark"]

const theme = () => (THEMES.includes(localStorage.getItem(THEME_KEY)) ? localStorage.getItem(THEME_KEY) : "system")

const main = h("main", { id: "main", tabIndex: -1 })
const banner = h("div.banner", { role: "status", "aria-live": "polite", hidden: true })
const links = NAVIGATION.map(([label, href, sign]) => h("a", { href }, icon(sign), h("span", label)))
const look = h("button.button.quiet.small.theme", { type: "button", on: { click: () => changeTheme() } })
const who = h("div.who")
let leave = new AbortController()
let shown = null

function start() {
	const skip = h("a.skip", {
		href: "#main",
		on: {
			click: (event) => {
				event.preventDefault()
				main.focus()
			},
		},
	}, "Skip to the content")
	put(document.getElementById("app"),
		skip,
		h("header.side",
			h("a.brand", { href: "#/", "aria-label": "topics console, overview" }, h("span.mark", { "aria-hidden": "true" }), "topics"),
			h("button.finder", { type: "button", "aria-label": "Go to", on: { click: () => openPalette(NAVIGATION, commands()) } },
				icon("search"), h("span", "Go to"), h("kbd", "Ctrl K")),
			h("nav", { "aria-label": "Pages" }, links),
			h("div.foot", who, look)),
		h("div.body", banner, main))
	session.addEventListener("connection", showConnection)
	session.addEventListener("unauthorized", () => shown !== signIn && showSignIn())
	session.addEventListener("changed", showWho)
	addEventListener("hashchange", open)
	listenToKeys(main, { pages: NAVIGATION, actions: commands })
	changeTheme(theme())
	open()
}

/** Show the page that the URL names. */
async function open() {
	leave.abort()
	leave = new AbortController()
	const { signal } = leave
	if (!session.who) {
		try {
			await session.open()
		} catch (error) {
			if (signal.aborted) return
			if (error.status === 401) return showSignIn()
			put(main, pageHead("Not connected"), failure(error))
			setTimeout(() => signal.aborted || open(), 2000)
			return
		}
		if (signal.aborted) return
	}
	const [path, query = ""] = (location.hash.slice(1) || "/").split("?")
	const [, name, one, ...more] = path.split("/").map(decoded)
	const pages = one === undefined ? { "": overview, keys, ...PAGES } : PAGES_OF_ONE
	const known = Object.hasOwn(pages, name) && one !== null && one !== "" && more.length === 0
	show(known ? pages[name] : noSuchPage, { params: [one], query: new URLSearchParams(query), signal })
}

/** Decode a part of a path. Return null for a part that encodes no text, such as `%`. */
function decoded(part) {
	try {
		return decodeURIComponent(part)
	} catch {
		return null
	}
}

function show(page, context) {
	const moved = shown !== null && shown !== page
	shown = page
	const title = typeof page.title === "function" ? page.title(context) : page.title
	document.title = `${title} · topics`
	const current = `#/${location.hash.slice(2).split(/[/?]/)[0]}`
	for (const link of links) {
		if (link.getAttribute("href") === current) link.setAttribute("aria-current", "page")
		else link.removeAttribute("aria-current")
	}
	try {
		put(main, page.show(context))
	} catch (error) {
		put(main, pageHead(title), failure(error))
	}
	if (moved) {
		scrollTo(0, 0)
		main.querySelector("h1")?.focus({ preventScroll: true })
	}
}

function showSignIn() {
	leave.abort()
	leave = new AbortController()
	session.who = null
	shown = signIn
	document.title = "Sign in · topics"
	put(who)
	put(main, signIn.show({ signal: leave.signal, done: open }))
}

function showWho() {
	const { key, scopes, prefixes } = session.who
	const rights = key === null ? "no keys: everything is allowed" : `${scopes.join(", ") || "no scopes"}${prefixes.length ? ` on ${prefixes.join(", ")}` : ""}`
	put(who,
		span("version", hidden("Server version "), session.version),
		h("span.rights", { title: rights }, key === null ? "open server" : rights),
		key !== null && session.can("admin") && h("a", { href: "#/keys" }, "Keys"),
		key !== null && button("Sign out", () => {
			session.signIn(null)
			showSignIn()
		}, { kind: "quiet small" }))
}

function showConnection() {
	banner.hidden = session.online
	put(banner, session.online ? "" : "The server does not answer. The console keeps trying and continues by itself.")
	if (session.online) void session.open().catch(() => {})
}

function setTheme(next) {
	if (next === "system") localStorage.removeItem(THEME_KEY)
	else localStorage.setItem(THEME_KEY, next)
	document.documentElement.dataset.theme = next
}

/** Use another theme: the next one, or a given one. */
function changeTheme(next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length]) {
	setTheme(next)
	look.title = "Change the colours: system, light or dark"
	put(look, icon(next), h("span", hidden("Theme: "), next))
}

/** What the palette can do. */
function commands() {
	return [
		...(session.can("admin") ? [
			["Create a topic", () => (location.hash = "#/topics?new=log"), "plus"], ["Create a queue", () => (location.hash = "#/queues?new=queue"), "plus"],
			["Create a router", () => (location.hash = "#/routers?new=router"), "plus"],
		] : []),
		...THEMES.map((name) => [`Theme: ${name}`, () => changeTheme(name), name]),
		["Show the keys", showKeys, "search"],
	]
}

start()
