"""Streams to clients: watch sessions over SSE, WebSockets, scans and work streams.

The dispatcher renders new records of a topic once for all its subscriptions. `api` opens these streams.
"""
