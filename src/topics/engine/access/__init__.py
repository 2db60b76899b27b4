"""Keys and revocations of tokens as the log and snapshots have them. What they allow is decided by the server.

Imports the write path and the state.
"""
