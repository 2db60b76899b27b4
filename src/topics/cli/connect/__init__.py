"""The server that a command talks to: contexts, addresses, keys, requests, and one HTTP connection.

Uses the standard library only, because commands start often, and `httpx` takes longer to import than most commands run.
"""
