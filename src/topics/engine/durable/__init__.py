"""From state to disk and back: checkpoints, recovery, and entries that are replayed after the start.

Files are written through `topics.storage`; the server runs what is slow here on threads.
"""
