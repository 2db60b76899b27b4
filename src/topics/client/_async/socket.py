"""A WebSocket: publish and subscribe over one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from topics.client import errors
from topics.client._async import tools
from topics.client.call import Addresses, Backoff, given
from topics.client.errors import Unreachable
from topics.client.items import (
    Appended,
    Config,
    Gap,
    Match,
    NewRecord,
    Record,
    RecordFields,
    RecordOptions,
    encode,
    new_record,
)
from topics.client.streams import gap_of, records_of
from topics.model.watch import WatchedTopic

MAX_MESSAGE_BYTES = 64 << 20


class _Message(Struct):
    """An answer or a delivery, without its records."""

    op: str
    request_id: int | None = None
    code: Any = None  # of an error
    message: str = ""
    detail: dict[str, Any] | None = None
    retry_after_ms: int | None = None


class _Subscribed(Struct):
    topics: dict[str, WatchedTopic]


_decode_message = msgspec.json.Decoder(_Message).decode
_decode_appended = msgspec.json.Decoder(Appended).decode
_decode_subscribed = msgspec.json.Decoder(_Subscribed).decode


class AsyncSocket:
    """One WebSocket of a server. Iterate over it for what its subscriptions deliver.

    It does not reconnect: when it breaks, iteration and calls raise `Unreachable`. Use `follow` or `watch` for a reader
    that resumes by itself. A refusal of a standby moves the client: its next socket goes to the writer.
    """

    def __init__(self, addresses: Addresses, token: str | None) -> None:
        self._addresses = addresses
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._connection: ClientConnection | None = None
        self._number = 0
        self._waiting: dict[int, tools.Future[bytes]] = {}
        self._items: list[Record | Gap] = []
        self._arrived = tools.Event()
        self._broken: Exception | None = None
        self._group = tools.Group()

    async def __aenter__(self) -> Self:
        backoff = Backoff()
        while True:
            self._url = url = self._addresses.url
            backoff.tried.add(url)
            try:
                self._opening = connect(
                    f"ws{url.removeprefix('http')}/v0/ws", additional_headers=self._headers,
                    max_size=MAX_MESSAGE_BYTES, open_timeout=self._addresses.connect_timeout_s, proxy=None,
                )  # fmt: skip
                self._connection = await self._opening.__aenter__()
            except (OSError, InvalidHandshake) as cause:
                error = Unreachable(f"no WebSocket at {url}: {cause}")
                self._addresses.leave(url, error)
                if not backoff.goes_on(self._addresses, error):
                    raise error from cause
            else:
                self._group.spawn(self._receive)
                return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opening.__aexit__(kind, error, trace)
        await self._group.join()

    async def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
        **options: Unpack[RecordOptions],
    ) -> Appended:
        """Append one record, with the options of `AsyncTopics.append`. Return once it is as safe as its topic promises.

        done = await socket.publish("room", {"text": "hello"}, node="ada")
        """
        record = new_record(data, options)
        return await self.publish_many(
            topic, [record], key=key, create=create, config=config, disable_backpressure=disable_backpressure
        )

    async def publish_many(
        self,
        topic: str,
        records: Sequence[NewRecord | RecordFields],
        *,
        node: str | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
        disable_backpressure: bool = False,
    ) -> Appended:
        """Append records: all of them or none.

        await socket.publish_many("room", [NewRecord(data=1), {"data": 2, "tag": "b"}])
        """
        command = {
            "topic": topic, "records": records, "return_seqs": False,
            **given(
                idempotency_key=key, node=node, create=create, config=config,
                disable_backpressure=disable_backpressure or None,
            ),
        }  # fmt: skip
        return _decode_appended(await self._ask("publish", command))

    async def subscribe(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        tail: bool = False,
        epoch: int | None = None,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        include_data: bool = True,
        consumer: str | None = None,
    ) -> dict[str, WatchedTopic]:
        """Deliver the records of a topic, or of all topics that a name ending in `*` matches, to this socket.

        `consumer` begins at the position of a named consumer, which `commit` moves.

        await socket.subscribe("room-*", tail=True)
        """
        command = {
            "topic": topic, "include_tags": True, "include_data": include_data,
            **given(
                from_seq=from_seq or None, tail=tail or None, epoch=epoch, node=node, filter=filter, consumer=consumer
            ),
        }  # fmt: skip
        return _decode_subscribed(await self._ask("subscribe", command)).topics

    async def commit(self, topic: str, seq: int, *, consumer: str | None = None) -> None:
        """Move the position of a consumer: of the subscription, or the one that is named.

        await socket.commit("orders", record.seq)
        """
        await self._ask("commit", {"topic": topic, "seq": seq, **given(consumer=consumer)})

    async def unsubscribe(self, topic: str) -> None:
        """Deliver no more records of a topic.

        await socket.unsubscribe("room-*")
        """
        await self._ask("unsubscribe", {"topic": topic})

    async def ping(self) -> None:
        """Return when the server has answered.

        await socket.ping()
        """
        await self._ask("ping", {})

    async def __aiter__(self) -> AsyncIterator[Record | Gap]:
        """Yield records and gaps as they come. Raises `Unreachable` when the connection breaks."""
        while True:
            self._arrived.clear()
            items, self._items = self._items, []
            for item in items:
                yield item
            if not items:
                if self._broken is not None:
                    raise self._broken
                await tools.wait_for(self._arrived, 1.0)

    async def _ask(self, op: str, fields: Mapping[str, Any]) -> bytes:
        if self._connection is None or self._broken is not None:
            raise self._broken or RuntimeError("use the socket in a `with` block")
        self._number += 1
        command = encode({"op": op, "request_id": self._number, **fields})
        future: tools.Future[bytes] = tools.Future()
        self._waiting[self._number] = future
        try:
            await self._connection.send(command, text=True)
        except ConnectionClosed as error:
            raise Unreachable(f"the WebSocket is closed: {error}", code="closed") from error
        return await tools.result_of_future(future)

    async def _receive(self) -> None:
        assert self._connection is not None
        try:
            async for message in self._connection:
                self._handle(message.encode() if isinstance(message, str) else message)
        except ConnectionClosed:
            pass
        finally:
            self._broken = Unreachable("the WebSocket is closed", code="closed")
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(self._broken)
            self._arrived.set()

    def _handle(self, message: bytes) -> None:
        head = _decode_message(message)
        future = None if head.request_id is None else self._waiting.pop(head.request_id, None)
        if future is not None:
            if head.op == "error":
                error = errors.from_code(head.code, head.message, 0, head.detail, head.retry_after_ms)
                self._addresses.leave(self._url, error)
                future.set_exception(error)
            else:
                future.set_result(message)
        elif head.op == "record":
            self._items += records_of(message)
            self._arrived.set()
        elif head.op == "tombstone":
            self._items.append(gap_of(message))
            self._arrived.set()
