# Generated from _async/calls/server_calls.py by tools/unasync.py. Do not edit.
"""Calls for the server itself: health, readiness, metrics and the description of its API."""

from __future__ import annotations

from typing import Any, Literal, overload

import msgspec

from topics.client._sync.transport import Calls, with_query
from topics.client.errors import Unavailable, Unreachable
from topics.model import inspection, wire

Metrics = dict[str, float | dict[str, Any]]
"""A number by the name of the metric, or numbers by label."""


class ServerCalls(Calls):
    """Ask the server how it is."""

    def health(self) -> wire.Health:
        """Return the version and the uptime of the server.

        print((topics.health()).version)
        """
        return self._http.call("GET", "/v0/health", wire.Health)

    def ready(self) -> wire.Ready:
        """Return the readiness of the server. Raises `NotReady`, `ShuttingDown` or `ReadOnly` if it cannot serve.

        print((topics.ready()).topics)
        """
        return self._http.call("GET", "/v0/ready", wire.Ready, retries=0)

    def is_ready(self) -> bool:
        """Return whether the server answers and can serve.

        while not topics.is_ready(): asyncio.sleep(0.1)
        """
        try:
            self.ready()
        except (Unavailable, Unreachable):
            return False
        return True

    @overload
    def metrics(self, format: Literal["json"] = "json") -> Metrics: ...

    @overload
    def metrics(self, format: Literal["prometheus"]) -> str: ...

    def metrics(self, format: Literal["json", "prometheus"] = "json") -> Metrics | str:
        """Return gauges and counters: as a dictionary, or as Prometheus text.

        print((topics.metrics())["topics_topics"])
        """
        if format == "prometheus":
            return (self._http.send("GET", "/v0/metrics", accept="text/plain")).decode()
        return msgspec.json.decode(self._http.send("GET", "/v0/metrics"), type=Metrics)

    def samples(self, *, after: int = 0, queue: str | None = None) -> inspection.Samples:
        """Return figures of the last hour, a row every few seconds, from after a time in ms since 1970.

        With `queue`, they are those of a queue; otherwise of the server.

        found = topics.samples()
        print(found.columns, found.rows[-1])
        """
        return self._http.call("GET", with_query("/v0/samples", after=after, queue=queue), inspection.Samples)

    def whoami(self) -> inspection.Whoami:
        """Return the scopes and prefixes of the API key. Raises `Unauthorized` if the server does not know it.

        print((topics.whoami()).scopes)
        """
        return self._http.call("GET", "/v0/whoami", inspection.Whoami)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the server.

        print(sorted((topics.openapi())["paths"]))
        """
        return msgspec.json.decode(self._http.send("GET", "/v0/openapi.json"), type=dict[str, Any])
