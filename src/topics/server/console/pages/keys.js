/** Keys: what each may do and when it was last used; create, rotate or revoke one; create a token, or revoke all of a key. */

import {
	actions, ago, ask, badge, button, code, createButton, curl, date, dialog, field, form, formDialog, h, input, isBusy, livePage, loading, note,
	pageHead, parseDuration, plainTable, redraw, session, span,
} from "../parts/kit.js"

export const title = "Keys"

export function show({ query, signal }) {
	const place = h("section.card", loading("Loading keys"))

	async function refresh() {
		const { keys } = await session.get("/v0/keys", signal)
		if (!isBusy(place)) redraw(place, plainTable("Keys", ["Key", "Allows", "On", "Last used", "Ends", "Actions"], keys.map(line)))
	}

	/** Show a new secret once. */
	const made = ({ key, secret, token, id, expires_at: ends }) => {
		dialog(secret ? `Secret of ${key}` : "New token", () => [
			note("It is shown now and never again. Clients send it as: authorization: Bearer ", secret ? "SECRET" : "TOKEN"), code(secret ?? token),
			token && note(`It ends at ${date(ends)}. To revoke it before, send its id:`), token && code(curl("/v0/tokens/revoke", { id })),
		])
		return refresh()
	}
	const create = (isToken) => () => formDialog(isToken ? "Create a token" : "Create a key", (done) => grant(isToken, done), made)
	const line = ({ key, source, rights, note: text, last_used_at: used, expires_at: ends }) => {
		const act = (label, words, action, then) => button(label, () => ask(`${label}: ${key}`, words, { label, action, said: `${label}: done.` }, then), { kind: "small" })
		return [
			[key, " ", source === "settings" ? badge(source) : span("faint", text)],
			[rights.scopes, rights.operations ?? []].flat().join(", "),
			[...(rights.prefixes ?? []).map((one) => `${one}*`), ...(rights.names ?? [])].join(", ") || "everything",
			ago(used),
			ends ? date(ends) : "never",
			h("td.row-actions", source === "stored" && [
				act("Rotate", "The key gets a new secret. The old one is valid for another day.", () => actions.rotateKey(key), made),
				act("Revoke", "Clients with this key are refused from now on.", () => actions.dropKey(key), refresh),
			], act("Revoke tokens", "All tokens that this key has made end now. The key stays valid.", () => actions.revokeTokens({ key }), refresh)),
		]
	}
	return livePage(pageHead("Keys", { actions: [h("a.button", { href: "#/topics/$audit" }, "Who changed what"), button("Create token", create(true)), createButton("Create key", query, create(false))] }), { refresh, place, signal, needs: "admin", everyMs: 5000 }, place)
}

/** A form that creates a key, or a token of the key of this session. */
function grant(isToken, done) {
	const kind = isToken ? "token" : "key"
	const [name, names, ttl, text] = ["key", "names", "ttl", "note"].map((one) => input({ name: one, required: one === "key" && !isToken }))
	const scopes = ["read", "write", "delete", "admin"].map((one) => h("input", { type: "checkbox", name: one, checked: one === "read", disabled: !session.can(one) }))
	const body = () => {
		const given = names.value.split(",").map((one) => one.trim()).filter(Boolean)
		return {
			...(isToken ? { subject: name.value.trim() } : { key: name.value.trim(), note: text.value }),
			scopes: scopes.filter((box) => box.checked).map((box) => box.name),
			...(given.length ? { names: given.filter((one) => !one.endsWith("*")), prefixes: given.filter((one) => one.endsWith("*")).map((one) => one.slice(0, -1)) } : {}),
			ttl_ms: ttl.value.trim() ? parseDuration(ttl.value.trim()) : undefined,
		}
	}
	return form([
		isToken && note("For a page or program that must not have the key."),
		h("div.grid",
			isToken ? field("For", name, "Whom it is for: in logs and in the audit topic.") : [field("Name", name, "What this page and the log call it."), field("Note", text)],
			field("Topics", names, "Names, and prefixes that end with *, such as: orders, shop.* Empty: what your key covers."),
			field("Valid for", ttl, isToken ? "Up to 1d. Empty: 10 minutes." : "Such as 30d. Empty: without end.")),
		h("div.toolbar", { role: "group", "aria-label": "Scopes" }, scopes.map((box) => h("label", box, ` ${box.name}`))),
	], {
		label: `Create ${kind}`, done, action: () => actions[isToken ? "createToken" : "createKey"](body()), said: `Created the ${kind}.`,
	})
}
