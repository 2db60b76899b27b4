"""The longest time that each kind of background work held the event loop. Pure.

Nothing else runs while a callback runs, so each of these is a pause for every client. Work that grows with the data
runs in slices of about half a millisecond; what cannot be cut is measured here too.
"""

from enum import StrEnum


class Cause(StrEnum):  # the hash of other members is a function in Python
    """The kinds of work, as metrics name them."""

    CHECKPOINT = "checkpoint"  # copies the state for a snapshot, and takes over the files that were written
    SEAL = "seal"  # closes a segment, and takes over its file
    GC = "gc"  # collections of the interpreter
    LIST = "list"  # pages of topics and routers
    METRICS = "metrics"
    REQUEST = "request"  # slices of other long requests
    DELIVERY = "delivery"  # pushes new records to watchers
    FORWARDING = "forwarding"  # copies records through routers
    SWEEP = "sweep"  # checks the deadlines of connections
    UPKEEP = "upkeep"  # removes expired idempotency keys, and starts syncs


class LoopHolds:
    """The longest hold of each cause since the start of the process."""

    def __init__(self) -> None:
        self.longest_ns = dict.fromkeys(Cause, 0)

    def note(self, cause: Cause, took_ns: int) -> None:
        if took_ns > self.longest_ns[cause]:
            self.longest_ns[cause] = took_ns
