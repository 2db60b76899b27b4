/** Keys: what each may do and when it was last used; create, rotate or revoke one, and revoke its tokens. */

import {
  ago, ask, badge, button, code, createButton, date, dialog, field, form, formDialog, h, input, isBusy, livePage, loading, note, pageHead,
  parseDuration, plainTable, redraw, session, span,
} from "../parts/kit.js"

export const title = "Keys"

export function show({ query, signal }) {
  const place = h("section.card", loading("Loading keys"))

  async function refresh() {
    const { keys } = await session.get("/v0/keys", signal)
    if (!isBusy(place)) redraw(place, plainTable("Keys", ["Key", "Allows", "On", "Last used", "Ends", "Actions"], keys.map(line)))
  }

  /** Show a new secret once. */
  const made = ({ key, secret }) => {
    dialog(`Secret of ${key}`, () => [note("It is shown now and never again. Clients send it as: authorization: Bearer SECRET"), code(secret)])
    return refresh()
  }
  const create = () => formDialog("Create a key", createKey, made)
  const line = ({ key, source, rights, note: text, last_used_at: used, expires_at: ends }) => {
    const act = (label, words, send, then) => button(label, () => ask(`${label}: ${key}`, words, { label, send, said: `${label}: done.` }, then), { kind: "small" })
    const path = `/v0/keys/${encodeURIComponent(key)}`
    return [
      [key, " ", source === "settings" ? badge(source) : span("faint", text)],
      [rights.scopes, rights.operations ?? []].flat().join(", "),
      [...(rights.prefixes ?? []).map((one) => `${one}*`), ...(rights.names ?? [])].join(", ") || "everything",
      ago(used, session.now()),
      ends ? date(ends) : "never",
      h("td.row-actions", source === "stored" && [
        act("Rotate", "The key gets a new secret. The old one is valid for another day.", () => session.request("POST", `${path}/rotate`, {}), made),
        act("Revoke", "Clients with this key are refused from now on.", () => session.request("DELETE", path), refresh),
      ], act("Revoke tokens", "All tokens that this key has made end now. The key stays valid.", () => session.request("POST", "/v0/tokens/revoke", { key }), refresh)),
    ]
  }
  return livePage(pageHead("Keys", { actions: [createButton("Create key", query, create)] }), { refresh, place, signal, needs: "admin", everyMs: 5000 }, place)
}

function createKey(done) {
  const [key, names, ttl, text] = ["key", "names", "ttl", "note"].map((name) => input({ name, required: name === "key" }))
  const scopes = ["read", "write", "delete", "admin"].map((name) => [name, h("input", { type: "checkbox", checked: name === "read", disabled: !session.can(name) })])
  return form([
    h("div.grid",
      field("Name", key, "What this page and the log call it."), field("Note", text, "What it is for."),
      field("Topics", names, "Names, and prefixes that end with *, such as: orders, shop.* Empty: what your key covers."),
      field("Valid for", ttl, "Such as 30d. Empty: without end.")),
    h("div.toolbar", { role: "group", "aria-label": "Scopes" }, scopes.map(([name, box]) => h("label", box, ` ${name}`))),
  ], {
    label: "Create key", done,
    submit: async () => {
      const given = names.value.split(",").map((one) => one.trim()).filter(Boolean)
      const body = {
        key: key.value.trim(), note: text.value, scopes: scopes.filter(([, box]) => box.checked).map(([name]) => name),
        ...(given.length ? { names: given.filter((one) => !one.endsWith("*")), prefixes: given.filter((one) => one.endsWith("*")).map((one) => one.slice(0, -1)) } : {}),
        ttl_ms: ttl.value.trim() ? parseDuration(ttl.value.trim()) : undefined,
      }
      return [`Created ${body.key}.`, await session.request("POST", "/v0/keys", body)]
    },
  })
}
