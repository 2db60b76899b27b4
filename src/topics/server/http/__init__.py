"""HTTP over a socket: bytes become requests, answers become bytes, within limits of time and memory.

`server` accepts connections, `http1/` and `http2/` serve them, `exchange`, `request/` and `answers` have what both
need, and `messages` is what an application sees. `access`, `loop`, `push` and `api` import it; it imports none of them.
"""
