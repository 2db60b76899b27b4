"""The path of a write: rendered, staged, committed to the log, then applied to the state.

A replayed entry is applied by the same functions as a live one. `queue` and `routers` write through it.
"""
