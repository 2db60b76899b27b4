"""HTTP/1.1 connections: `connection` has the socket and the fast path, `pipeline` everything else, without I/O.

`server` creates one connection per socket. Only `server` imports this folder.
"""
