"""The lag of each topic: how far the slowest router or named consumer that reads it is behind."""

from __future__ import annotations

from topics.cli.connect.request import get, router_path
from topics.cli.connect.server import Server
from topics.errors import Code, TopicsError


def lags(server: Server) -> dict[str, int]:
    """Return the lag in records by topic, for topics that something reads."""
    found: dict[str, int] = {}
    for router in server.rows(get(router_path()), "routers"):
        found[router["source"]] = max(found.get(router["source"], 0), router["lag"])
    try:
        for consumer in server.rows(get("/v0/consumers"), "consumers"):
            found[consumer["topic"]] = max(found.get(consumer["topic"], 0), consumer["lag_records"])
    except TopicsError as error:
        if error.code is not Code.NOT_FOUND:  # an older server has no consumers
            raise
    return found
