"""Routers of an engine without a server: forward all that can be."""

from topics.engine.engine import Engine
from topics.storage.segments.cold import waiting


def drain(engine: Engine) -> None:
    """Forward everything that can be, and wait for the log and the disk."""
    routers = engine.routers
    for edge in routers.table.edges.values():
        routers.due.add(edge)
    while True:
        waiting(lambda: routers.forwarder.run(0))
        engine.commits.sync()
        soon_ms = routers.due.elapsed_ms()
        if (
            not routers.due.queue
            and not routers.due.grown
            and all(e.held_until_ms > soon_ms for e in routers.due.waiting)
        ):
            return
