"""A writer that batches: by count, by bytes, and by time, with bounded memory and retries that never double."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from threading import Lock
from types import TracebackType
from typing import Any, Self, Unpack
from uuid import uuid4

from msgspec import Struct

from topics.client import tracing
from topics.client._async import tools
from topics.client._async.transport import UNLIMITED, AsyncTransport
from topics.client.call import topic_path
from topics.client.errors import BatchTooLarge, PayloadTooLarge
from topics.client.items import Appended, RecordOptions, SeqFuture, Seqs, encode, new_record
from topics.plurals import counted

PAUSE_S = 0.005


class _Plain(Struct, gc=False):
    data: Any


@dataclass(eq=False, slots=True)
class _Batch:
    """Records that go out together, and a future of their seqs."""

    texts: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    seqs: tools.Future[Seqs] = field(default_factory=tools.Future)


class AsyncWriter:
    """Appends records to one topic in batches, in order, one batch at a time.

    A batch goes out when it has `max_records` or `max_bytes`, or when its first record has waited `linger_ms`. A server
    that takes fewer records at a time gets it in parts. Each request has an idempotency key, so one whose answer was
    lost is sent again and written once. `append` waits while more than `max_pending_bytes` wait to be written.

    A batch that cannot be written fails the futures of its records, and the next batch is sent. `flush` and the end of
    the `with` block raise the first failure since the last `flush`, so a program that ignores the futures notices it.
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
        self._http, self._topic, self._node = http, topic, node
        self._path = topic_path(topic, return_seqs=False)
        self._max_records, self._max_bytes, self._max_pending_bytes = max_records, max_bytes, max_pending_bytes
        self._linger_s = linger_ms / 1000
        self._key = uuid4().hex.encode()
        self._requests = 0
        self._open: _Batch | None = None  # takes records
        self._full: deque[_Batch] = deque()  # wait to be sent
        self._sent: _Batch | None = None  # waits for its answer
        self._failure: Exception | None = None  # the first one that was not raised yet
        self._failed = 0  # records
        self._pending_bytes = 0  # of all three
        self._plain = False  # whether records without tag and meta need no more than their data
        self._closing = False
        self._lock = Lock()  # over the batches; never held while anything waits
        self._changed = tools.Event()  # there may be a batch to send
        self._drained = tools.Event()  # a batch was answered
        self._group = tools.Group()
        self._started = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"The writer of {self._topic} failed, too: {failure}")

    async def append(self, data: object, **options: Unpack[RecordOptions]) -> SeqFuture:
        """Add one record, with the options of one of `AsyncTopics.append`; wait while too much is pending.

        Return a future of its seq, which fails with the write.

        future = await writer.append({"url": "/"}, tag="click")
        print(await future)
        """
        if self._plain and not options:
            text = encode(_Plain(data))
        else:
            record = new_record(data, options)
            record.node = record.node or self._node
            with tracing.sending(self._topic, [record]) as traced:
                text = encode(traced[0])
        size = len(text)
        while self._pending_bytes and self._pending_bytes + size > self._max_pending_bytes:
            self._drained.clear()
            self._changed.set()
            await tools.wait_for(self._drained, 1.0)
        with self._lock:
            batch = self._open
            if batch is None:
                batch = self._begin_batch()
            texts = batch.texts
            index = len(texts)
            texts.append(text)
            batch.size_bytes += size
            self._pending_bytes += size
            if index + 1 < self._max_records and batch.size_bytes < self._max_bytes:
                return SeqFuture(batch.seqs, index)
            self._full.append(batch)
            self._open = None
            self._changed.set()
        await self._let_sender_run()
        return SeqFuture(batch.seqs, index)

    def _begin_batch(self) -> _Batch:
        if self._closing:
            raise RuntimeError("the writer is closed")
        if not self._started:
            self._started = True
            self._group.spawn(self._send_batches)
        self._plain = self._node is None and not tracing.enabled()
        self._open = _Batch()
        self._changed.set()
        return self._open

    async def _let_sender_run(self) -> None:
        """Pause a program that appends faster than the server answers, so that the sender gets its share of time."""
        if len(self._full) > 1:
            self._drained.clear()
            await tools.wait_for(self._drained, PAUSE_S)
        else:
            await tools.sleep(0)

    async def flush(self) -> None:
        """Wait until every record that was appended so far is written or has failed.

        Raise the first failure since the last `flush`, even if the future of the record was asked for it. A note of the
        exception says how many records were not written. The futures of the others have their seqs.

        await writer.flush()
        """
        with self._lock:
            last = self._open or (self._full[-1] if self._full else self._sent)
        if last is not None:
            self._changed.set()
            await tools.wait_until_done(last.seqs)
        self._raise_failure()

    def _raise_failure(self) -> None:
        """Raise the first failure, once. A note says how many records were not written."""
        with self._lock:
            failure, failed, self._failure, self._failed = self._failure, self._failed, None, 0
        if failure is not None:
            failure.add_note(f"{counted(failed, 'record')} of {self._topic} failed")
            raise failure

    async def aclose(self) -> None:
        """Write what is pending, and end. A `with` block does so by itself. Raise a failure as `flush` does.

        await writer.aclose()
        """
        self._closing = True
        self._changed.set()
        await self._group.join()
        self._raise_failure()

    async def _send_batches(self) -> None:
        while True:
            self._changed.clear()
            if not self._full:
                if self._open is None:
                    if self._closing:
                        return
                    await tools.wait_for(self._changed, 1.0)
                    continue
                if self._linger_s and not self._closing:
                    await tools.wait_for(self._changed, self._linger_s)
            with self._lock:
                if self._full:
                    batch = self._full.popleft()
                else:
                    assert self._open is not None
                    batch, self._open = self._open, None
                self._sent = batch
            await self._send(batch)

    async def _send(self, batch: _Batch) -> None:
        error: Exception | None = None
        try:
            seqs = await self._written(batch.texts)
        except Exception as failure:
            error, seqs = failure, [failure] * len(batch.texts)
        failed = [] if isinstance(seqs, range) else [found for found in seqs if isinstance(found, Exception)]
        with self._lock:  # before the future is done: `flush` waits for it, then raises the failure
            self._failure = self._failure or next(iter(failed), None)
            self._failed += len(failed)
        if error is None:
            batch.seqs.set_result(seqs)
        else:
            batch.seqs.set_exception(error)
            batch.seqs.exception()  # asyncio logs an exception that was not asked for; `flush` raises this one
        with self._lock:
            self._sent = None
            self._pending_bytes -= batch.size_bytes
        self._drained.set()

    async def _written(self, texts: list[bytes]) -> Seqs:
        """Write records in one request, or in several if the server does not take as many at a time."""
        self._requests += 1
        body = b'{"idempotency_key":"%b-%d","records":[%b]}' % (self._key, self._requests, b",".join(texts))
        try:
            retries = None if self._http.retries is None else UNLIMITED
            done = await self._http.call("POST", self._path, Appended, body=body, retries=retries, keyed=True)
        except (BatchTooLarge, PayloadTooLarge) as error:
            if len(texts) == 1:
                raise
            most = len(texts) // 2
            if isinstance(error, BatchTooLarge):
                most = self._max_records = min((error.detail or {}).get("max") or most, len(texts) - 1)
        else:
            return range(done.first_seq, done.first_seq + len(texts))
        seqs: list[int | Exception] = []
        for start in range(0, len(texts), most):
            try:
                seqs += await self._written(texts[start : start + most])
            except Exception as error:
                if not seqs:
                    raise
                return seqs + [error] * (len(texts) - len(seqs))
        return seqs
