"""Records and jobs that go to clients as they come: SSE, WebSocket, scans and work streams.

The dispatcher renders what is new in a topic once and gives it to every subscription. `api` opens these streams.
"""
