"""What shares the event loop: the runtime, storage, forwarding, loads from the disk, sliced work, and the throttle.

`push` and `api` use it; it knows no route and no connection.
"""
