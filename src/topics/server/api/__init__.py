"""The API: the route table, the request handler that dispatches by it, access checks, metrics and OpenAPI.

Only `app` imports this folder. The handlers of the routes are in `handlers`.
"""
