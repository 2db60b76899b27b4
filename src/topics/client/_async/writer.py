"""A writer that batches: by count, by bytes, and by time, with bounded memory and retries that never double."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.transport import AsyncTransport, topic_path, with_query
from topics.client.errors import OutcomeUnknown, TopicsError
from topics.client.items import Appended, NewRecord
from topics.client.retry import Backoff

RETRY_FOR_S = 100.0  # less than the default idempotency window of 120 s: a later retry could double
_encode = msgspec.json.encode


_Pending = tuple[bytes, tools.Future[int]]  # a record as JSON, and who waits for its seq


class AsyncWriter:
    """Appends records to one topic in batches, in order, one batch at a time.

    A batch goes out when it has `max_records` or `max_bytes`, or when its first record has waited `linger_ms`. Each has
    an idempotency key, so a batch whose answer was lost is sent again and written once. `append` waits while more than
    `max_pending_bytes` wait to be written.
    """

    def __init__(
        self,
        http: AsyncTransport,
        topic: str,
        *,
        max_records: int,
        max_bytes: int,
        linger_ms: int,
        max_pending_bytes: int,
        node: str | None,
    ) -> None:
        self._http = http
        self._path = with_query(topic_path(topic), return_seqs=False)
        self._topic = topic
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._linger_s = linger_ms / 1000
        self._max_pending_bytes = max_pending_bytes
        self._node = node
        self._key = uuid4().hex
        self._batches = 0
        self._pending: deque[_Pending] = deque()
        self._pending_bytes = 0
        self._in_flight = 0
        self._closing = False
        self._changed = tools.Event()  # there may be a batch to send
        self._drained = tools.Event()  # there may be room, or nothing left
        self._group = tools.Group()
        self._started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def append(
        self,
        data: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> tools.Future[int]:
        """Add one record. Return a future of its seq, which fails if the record cannot be written.

        future = await writer.append({"url": "/"}, tag="click")
        """
        record = NewRecord(data=data, tag=tag, node=node or self._node, meta=None if meta is None else dict(meta))
        text = self._traced(record) if tracing.enabled else _encode(record)
        if self._pending_bytes + len(text) > self._max_pending_bytes:
            await self._wait_for_room(len(text))
        if not self._started or self._closing:
            self._start()
        future: tools.Future[int] = tools.new_future()
        pending = self._pending
        pending.append((text, future))
        self._pending_bytes += len(text)
        if len(pending) == 1 or len(pending) >= self._max_records or self._pending_bytes >= self._max_bytes:
            self._changed.set()
        return future

    def _traced(self, record: NewRecord) -> bytes:
        with tracing.sending(self._topic, [record]) as traced:
            return _encode(traced[0])

    async def _wait_for_room(self, size_bytes: int) -> None:
        while self._pending_bytes and self._pending_bytes + size_bytes > self._max_pending_bytes:
            self._drained.clear()
            await tools.wait_for(self._drained, 1.0)

    def _start(self) -> None:
        if self._closing:
            raise RuntimeError("the writer is closed")
        self._started = True
        self._group.spawn(self._send_batches)

    async def flush(self) -> None:
        """Wait until every record that was appended so far is written or has failed."""
        while self._pending or self._in_flight:
            self._drained.clear()
            self._changed.set()
            await tools.wait_for(self._drained, 0.05)

    async def aclose(self) -> None:
        """Write what is pending, and end."""
        self._closing = True
        self._changed.set()
        await self._group.join()

    def _is_full(self) -> bool:
        return len(self._pending) >= self._max_records or self._pending_bytes >= self._max_bytes

    async def _send_batches(self) -> None:
        while self._pending or not self._closing:
            if not self._pending:
                self._changed.clear()
                await tools.wait_for(self._changed, 1.0)
                continue
            if not self._is_full() and not self._closing and self._linger_s:
                self._changed.clear()
                await tools.wait_for(self._changed, self._linger_s)
            await self._send(self._take_batch())

    def _take_batch(self) -> list[_Pending]:
        batch: list[_Pending] = []
        size = 0
        while self._pending and len(batch) < self._max_records and (not batch or size < self._max_bytes):
            pending = self._pending.popleft()
            batch.append(pending)
            size += len(pending[0])
        self._in_flight = size
        return batch

    async def _send(self, batch: list[_Pending]) -> None:
        self._batches += 1
        body = b'{"idempotency_key":"%b-%d","records":[%b]}' % (
            self._key.encode(), self._batches, b",".join([text for text, _ in batch]),
        )  # fmt: skip
        try:
            done = await self._written(body)
        except TopicsError as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for seq, (_, future) in enumerate(batch, done.first_seq):
                if not future.done():
                    future.set_result(seq)
        self._pending_bytes -= self._in_flight
        self._in_flight = 0
        self._drained.set()

    async def _written(self, body: bytes) -> Appended:
        """Send a batch until it is written, refused for good, or its key may have expired."""
        backoff = Backoff()
        give_up = time.monotonic() + RETRY_FOR_S
        while True:
            try:
                return await self._http.call("POST", self._path, Appended, body=body, retries=0)
            except TopicsError as error:
                if not error.retryable:
                    raise
                wait_s = backoff.next_s(error)
                if time.monotonic() + wait_s > give_up:
                    raise OutcomeUnknown(f"no confirmation for {RETRY_FOR_S:.0f} s: {error}") from error
            await tools.sleep(wait_s)
