"""The routes: a table of rows, the dispatch by it, and a handler for each.

A handler decodes, makes one engine call, and encodes. Only `app` imports it.
"""
