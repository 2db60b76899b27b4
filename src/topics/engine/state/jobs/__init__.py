"""The jobs of queues: their terms, their leases with deadlines, their delays, and their part of a snapshot.

`state.topic` has the `Leases` of each queue. The folder imports nothing else of the engine.
"""
