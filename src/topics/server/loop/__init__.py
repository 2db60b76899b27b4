"""What shares the event loop: storage, forwarding, loads from the disk, long work in slices, and backpressure.

`push` and `api` use it; it knows no route and no connection.
"""
