"""Requests on their way in: heads, bodies, and query strings. Pure.

The parser and the caches of heads serve both HTTP/1.1 and HTTP/2. Handlers of `api` decode queries and writes with it.
"""
