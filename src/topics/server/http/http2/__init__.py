"""HTTP/2 without TLS, for clients that know that the server speaks it (RFC 9113). Frames by the package `h2`.

`http/server.py` imports it when the first connection begins with the preface of HTTP/2, and nothing else does.
"""
