"""Calls for named consumers, whose positions the server keeps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from topics.client._async.transport import AsyncCalls, consumer_path, fields_of, topic_path
from topics.client.consumers import ConsumerInfo, ConsumerPage
from topics.model import consumer as consuming


class AsyncConsumerCalls(AsyncCalls):
    """Store, inspect, list and delete the positions of named consumers."""

    async def put_consumer(
        self,
        topic: str,
        name: str,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        if_seq: int | None = None,
        if_new: bool = False,
        meta: Mapping[str, Any] | None = None,
        expire_ms: int | None = None,
        hold: bool | None = None,
        max_hold_bytes: int | None = None,
    ) -> consuming.ConsumerPut:
        """Store the position of a consumer, or change its settings. What is not given keeps its value.

        `seq` is the last record that it has processed. Raise `ConsumerMoved` if `if_seq` is given and it does not stand
        there, or if `if_new` is set and it exists. Raise `EpochMismatch` if `epoch` is given and the topic was created
        again. With `hold`, the server keeps unread records, up to `max_hold_bytes`.

        await topics.put_consumer("orders", "billing", seq=480, if_seq=420)
        """
        body = {
            **fields_of(
                seq=seq, epoch=epoch, if_seq=if_seq, meta=meta, expire_ms=expire_ms, hold=hold,
                max_hold_bytes=max_hold_bytes,
            ),
            **({"if_seq": None} if if_new else {}),
        }  # fmt: skip
        safe = if_seq is None and not if_new
        return await self._http.call("PUT", consumer_path(topic, name), consuming.ConsumerPut, body=body, safe=safe)

    async def commit(self, commits: Sequence[tuple[str, str, int]]) -> consuming.CommitAnswer:
        """Move consumers of any topics: a topic, the name of a consumer and a seq each. They never move back.

        A commit that cannot take effect is listed in `refused`, and the others take effect.

        await topics.commit([("orders", "billing", 480), ("chat", "billing", 12)])
        """
        rows = [consuming.Commit(topic, name, seq) for topic, name, seq in commits]
        return await self._http.call("POST", "/v0/consumers", consuming.CommitAnswer, body={"commits": rows})

    async def consumer(self, topic: str, name: str) -> ConsumerInfo:
        """Return a consumer: its position, its lag, and what it has lost. Raises `ConsumerNotFound`.

        print((await topics.consumer("orders", "billing")).lag_records)
        """
        return await self._http.call("GET", consumer_path(topic, name), ConsumerInfo)

    async def consumers(self, topic: str | None = None, *, prefix: str | None = None) -> AsyncIterator[ConsumerInfo]:
        """Yield the consumers of a topic by name, or those of all topics whose names begin with `prefix`.

        async for row in topics.consumers("orders"):
            print(row.consumer, row.lag_records, row.lag_ms)
        """
        path = "/v0/consumers" if topic is None else topic_path(topic, "/consumers")
        async for page in self._http.pages(path, ConsumerPage, prefix=prefix):
            for row in page.consumers:
                yield row

    async def drop_consumer(self, topic: str, name: str) -> bool:
        """Forget a consumer, and end its hold. Return False if it did not exist.

        await topics.drop_consumer("orders", "billing")
        """
        return (await self._http.call("DELETE", consumer_path(topic, name), consuming.ConsumerDropped)).deleted
