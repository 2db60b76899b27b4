"""Calls for keys and tokens, and for the server itself."""

from __future__ import annotations

from typing import Any, Literal, Unpack, overload

from topics.client._async.management import AsyncCalls
from topics.client.call import Request, given, key_path, with_query
from topics.client.errors import Unavailable, Unreachable
from topics.client.items import KeyOptions, TokenOptions
from topics.model import access, inspection, wire

QUERY_MS = 70_000  # a query may wait for others
Metrics = dict[str, float | dict[str, Any]]
"""A number by the name of the metric, or numbers by label."""


class AsyncServerCalls(AsyncCalls):
    """Create and revoke keys and tokens, and ask the server how it is."""

    # --- keys and tokens

    async def create_token(self, **wanted: Unpack[TokenOptions]) -> access.TokenCreated:
        """Return a token with at most the rights of this key, valid for ten minutes or for `ttl_ms`.

        made = await topics.create_token(scopes=["read"], names=["orders"], subject="user-7")
        print(made.token)
        """
        return await self._http.call("POST", "/v0/tokens", access.TokenCreated, body=wanted, safe=False)

    async def revoke_tokens(self, *, id: str | None = None, key: str | None = None, before: int | None = None) -> None:
        """Revoke a token by its id, the tokens of a key, or all; those that were issued before a time in ms since 1970.

        await topics.revoke_tokens(key="billing")
        """
        body = given(id=id, key=key, before=before)
        await self._http.call("POST", "/v0/tokens/revoke", access.TokensRevoked, body=body)

    async def create_key(self, key: str, **wanted: Unpack[KeyOptions]) -> access.KeyCreated:
        """Create a key, and return it with its secret, which is never shown again.

        made = await topics.create_key("billing", scopes=["read", "write"], prefixes=["orders."])
        print(made.secret)
        """
        return await self._http.call("POST", "/v0/keys", access.KeyCreated, body={"key": key, **wanted}, safe=False)

    async def keys(self) -> list[access.KeyState]:
        """Return the keys that this key covers, without their secrets.

        print([row.key for row in await topics.keys()])
        """
        return (await self._http.call("GET", "/v0/keys", access.KeyList)).keys

    async def rotate_key(self, key: str, *, overlap_ms: int | None = None) -> access.KeyCreated:
        """Give a key a new secret, and return it. The old one is valid for another day, or for `overlap_ms`.

        made = await topics.rotate_key("billing", overlap_ms=3_600_000)
        """
        body = given(overlap_ms=overlap_ms)
        return await self._http.call("POST", key_path(key, "rotate"), access.KeyCreated, body=body, safe=False)

    async def revoke_key(self, key: str) -> bool:
        """Remove a key: its requests, streams and tokens end. Return False if it did not exist.

        await topics.revoke_key("billing")
        """
        return (await self._http.call("DELETE", key_path(key), access.KeyDropped)).deleted

    # --- the server

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
            return (await self._http.send(Request("GET", "/v0/metrics", accept="text/plain"))).decode()
        return await self._http.call("GET", "/v0/metrics", Metrics)

    async def samples(self, *, after: int = 0, queue: str | None = None) -> inspection.Samples:
        """Return figures of the last hour, a row every few seconds, from after a time in ms since 1970.

        With `queue`, they are those of a queue; otherwise of the server.

        found = await topics.samples()
        print(found.columns, found.rows[-1])
        """
        return await self._http.call("GET", with_query("/v0/samples", after=after, queue=queue), inspection.Samples)

    async def sql(self, query: str, *, limit: int = inspection.SQL_ROWS) -> inspection.SqlAnswer:
        """Return the rows of a statement, in which topics are tables. The server needs the extra `sql`.

        print((await topics.sql("select tag, count(*) from orders group by tag")).rows)
        """
        body = {"query": query, "limit": limit}
        return await self._http.call("POST", "/v0/sql", inspection.SqlAnswer, body=body, wait_ms=QUERY_MS)

    async def replica(self) -> inspection.ReplicaAnswer:
        """Return how far the replica of the server is behind, what it has, and which servers follow.

        print((await topics.replica()).role)
        """
        return await self._http.call("GET", "/v0/replica", inspection.ReplicaAnswer)

    async def promote(self, to: str) -> inspection.Promoted:
        """Let a standby take over. The writer stops in order, and nothing is lost.

        await topics.promote("standby-4001")
        """
        body = {"to": to}
        return await self._http.call(
            "POST", "/v0/replica/promote", inspection.Promoted, body=body, wait_ms=QUERY_MS, safe=False
        )

    async def whoami(self) -> inspection.Whoami:
        """Return the scopes and prefixes of the API key. Raises `Unauthorized` if the server does not know it.

        print((await topics.whoami()).scopes)
        """
        return await self._http.call("GET", "/v0/whoami", inspection.Whoami)

    async def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of the server.

        print(sorted((await topics.openapi())["paths"]))
        """
        return await self._http.call("GET", "/v0/openapi.json", dict[str, Any])
