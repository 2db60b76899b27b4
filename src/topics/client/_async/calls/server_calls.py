"""Calls for the server itself: health, readiness, metrics and the description of its API."""

from __future__ import annotations

from typing import Any, Literal, overload

import msgspec

from topics.client._async.transport import AsyncCalls, with_query
from topics.client.errors import Unavailable, Unreachable
from topics.model import inspection, wire

Metrics = dict[str, float | dict[str, Any]]
"""A number by the name of the metric, or numbers by label."""


class AsyncServerCalls(AsyncCalls):
    """Ask the server how it is."""

    async def health(self) -> wire.Health:
        """Return the version and the uptime of the server.

        print((await topics.health()).version)
        """
        return await self._http.call("GET", "/v0/health", wire.Health)

    async def ready(self) -> wire.Ready:
        """Return the readiness of the server. Raises `NotReady`, `ShuttingDown` or `ReadOnly` if it cannot serve.

        print((await topics.ready()).topics)
        """
        return await self._http.call("GET", "/v0/ready", wire.Ready, retries=0)

    async def is_ready(self) -> bool:
        """Return whether the server answers and can serve.

        while not await topics.is_ready(): await asyncio.sleep(0.1)
        """
        try:
            await self.ready()
        except (Unavailable, Unreachable):
            return False
        return True

    @overload
    async def metrics(self, format: Literal["json"] = "json") -> Metrics: ...

    @overload
    async def metrics(self, format: Literal["prometheus"]) -> str: ...

    async def metrics(self, format: Literal["json", "prometheus"] = "json") -> Metrics | str:
        """Return gauges and counters: as a dictionary, or as Prometheus text.

        print((await topics.metrics())["topics_topics"])
        """
        if format == "prometheus":
            return (await self._http.send("GET", "/v0/metrics", accept="text/plain")).decode()
        return msgspec.json.decode(await self._http.send("GET", "/v0/metrics"), type=Metrics)

    async def samples(self, *, after: int = 0, queue: str | None = None) -> inspection.Samples:
        """Return figures of the last hour, a row every few seconds, from after a time in ms since 1970.

        With `queue`, they are those of a queue; otherwise of the server.

        found = await topics.samples()
        print(found.columns, found.rows[-1])
        """
        return await self._http.call("GET", with_query("/v0/samples", after=after, queue=queue), inspection.Samples)

    async def whoami(self) -> inspection.Whoami:
        """Return the scopes and prefixes of the API key. Raises `Unauthorized` if the server does not know it.

        print((await topics.whoami()).scopes)
        """
        return await self._http.call("GET", "/v0/whoami", inspection.Whoami)

    async def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the server.

        print(sorted((await topics.openapi())["paths"]))
        """
        return msgspec.json.decode(await self._http.send("GET", "/v0/openapi.json"), type=dict[str, Any])
