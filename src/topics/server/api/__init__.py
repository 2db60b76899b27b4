"""The API: the route table, the request handler that dispatches by it, and one handler per route.

A handler decodes, makes one engine call, and encodes. Only `app` imports this folder.
"""
