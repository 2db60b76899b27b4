/** Sign in with an API key. */

import { code, field, form, h, input, note, session } from "../parts/kit.js"

export const title = "Sign in"

export function show({ done }) {
	const key = input({ type: "password", required: true, autocomplete: "current-password", name: "key" })
	const made = form([
		session.key && note("The server did not accept the key of this tab."),
		field("API key", key, "It stays in this tab, and is sent to this server only, in a header."),
	], {
		label: "Sign in",
		submit: async () => {
			session.signIn(key.value.trim())
			try {
				await session.open()
			} catch (error) {
				session.signIn(null)
				if (error.status === 401 || error instanceof TypeError) error.message = "This server does not know the key"
				key.select()
				throw error
			}
			done()
		},
	})
	setTimeout(() => key.focus())
	return h("div.sign-in.card", h("h1", "Sign in"), made,
		h("details", h("summary", "Where do I get a key?"),
			h("p", "The operator of the server sets the keys when it starts. A key has scopes, and may have prefixes:"),
			code("TOPICS_API_KEYS='a-long-secret:read+write+delete+admin' topics serve")))
}
