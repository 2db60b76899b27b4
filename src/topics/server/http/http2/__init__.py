"""HTTP/2 (RFC 9113), for clients that begin with its preface. Frames by the package `h2`.

`http/server.py` imports it when the first connection begins with the preface of HTTP/2, and nothing else does.
"""
