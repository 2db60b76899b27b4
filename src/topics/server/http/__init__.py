"""HTTP/1.1 over a socket: bytes become requests, answers become bytes, within limits of time and memory.

Nothing here knows topics or keys. `access`, `loop`, `push` and `api` build on it.
"""
