"""Delays that the server adds on purpose, because work that is done together costs less.

They meet on the path of one record (write, sync, copy, push), so they are in one place. `docs/architecture.md`, section
Delays, says how they add up.
"""

# After a sync, the next one waits for this many turns of the loop, even if tickets wait for it: clients that were just
# answered write again in these turns and share it. With 32 writers a sync serves 26 of them instead of 16. One turn is
# too short for answers to leave and the next writes to arrive.
GATHER_TURNS = 2

# A topic with many watchers is served at most about once per `GATHER_MS`. A frame costs a call of the kernel per
# watcher, whatever it holds. In a room of 30 with 1,500 messages per second this saves a fifth of the processor
# time of the server, and adds 1.4 ms to the median latency: see docs/decisions/gathering.md.
GATHER_MS = 2
GATHER_WATCHERS = 16  # subscriptions of one topic; fewer do not repay the wait

# Routers copy for one slice. While requests arrive, forwarding then rests for `REST` times the length of the slice,
# unless it made few copies of few writes: a rest after each of them would make the next copy late, and save nothing.
SLICE_NS = 300_000
REST = 8
# The copies of a turn within these bounds are made before the next request is read, so that a client finds them.
FEW_STEPS = 4  # of the forwarder in a slice: one per router. More delay the next write of the same client.
FEW_WRITES = 4  # in one turn of the loop
FEW_RECORDS = 100  # that a router has not copied yet
STARVED_NS = 20_000_000  # a router whose destination waits for a sync for longer than this has the log synced

# Under pressure, by step: how long pushes and commits are gathered.
PRESSED_PUSH_MS = (0, 4, 8, 16, 32)
PRESSED_COMMIT_MS = (0, 0, 2, 4, 8)
