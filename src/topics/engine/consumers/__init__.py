"""Named consumers: positions of readers that the server keeps.

`consumer_log` has their log entry and their part of a snapshot, `lag` measures how far they are behind, `verbs` is what
clients can do with them. Imports the state and the write path; routers and the engine import it.
"""
