"""The server that a command talks to: contexts, addresses, keys, and its requests over `topics.client.connection`."""
