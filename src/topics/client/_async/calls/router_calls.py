"""Calls for routers, which copy the records of one topic to another."""

from __future__ import annotations

from collections.abc import AsyncIterator

from topics.client._async.transport import AsyncCalls, fields_of, router_path
from topics.client.items import Match
from topics.model import router as routing


class AsyncRouterCalls(AsyncCalls):
    """Create, inspect, list, preview and delete routers."""

    async def put_router(
        self,
        name: str,
        *,
        source: str,
        dest: str,
        filter: Match | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: routing.Guarantee = "at_least_once",
        from_seq: int | None = None,
        from_ts: int | None = None,
    ) -> routing.RouterPutAnswer:
        """Create a router, or change it: every record of `source` is copied to `dest`.

        A new router starts at the head of its source, or after `from_seq`, or with the first record from `from_ts` on.
        Raises `RouterCycle` if the router would close a cycle and `allow_cycle` is not set.

        await topics.put_router("orders->audit", source="orders", dest="audit", filter=("tag", "Glob", "eu-*"))
        """
        body = {
            "source": source, "dest": dest, "preserve_node": preserve_node, "preserve_tag": preserve_tag,
            "create_dest": create_dest, "allow_cycle": allow_cycle, "guarantee": guarantee,
            **fields_of(filter=filter, from_seq=from_seq, from_ts=from_ts),
        }  # fmt: skip
        return await self._http.call("PUT", router_path(name), routing.RouterPutAnswer, body=body)

    async def router(self, name: str) -> routing.RouterAnswer:
        """Return a router: its position, its lag and its last error. Raises `RouterNotFound`.

        print((await topics.router("orders->audit")).lag)
        """
        return await self._http.call("GET", router_path(name), routing.RouterAnswer)

    async def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> AsyncIterator[routing.RouterSummary]:
        """Yield routers by name.

        async for row in topics.routers(source="orders"):
            print(row.router, row.dest)
        """
        async for page in self._http.pages("/v0/routers", routing.RouterList, prefix=prefix, source=source, dest=dest):
            for row in page.routers:
                yield row

    async def drop_router(self, name: str) -> bool:
        """Remove a router. Records that it has copied stay. Return False if it did not exist.

        await topics.drop_router("orders->audit")
        """
        return (await self._http.call("DELETE", router_path(name), routing.RouterDropped)).deleted

    async def preview_router(
        self,
        name: str,
        *,
        source: str | None = None,
        filter: Match | None = None,
        from_seq: int = 0,
        from_ts: int | None = None,
    ) -> routing.PreviewAnswer:
        """Count the records that a filter would copy, without copying any.

        `source` and `filter` default to those of the router; with a `source`, the router need not exist.

        print((await topics.preview_router("orders->audit", filter="eu-1")).matched)
        """
        body = {"from_seq": from_seq, **fields_of(source=source, filter=filter, from_ts=from_ts)}
        return await self._http.call("POST", router_path(name, "/preview"), routing.PreviewAnswer, body=body)
