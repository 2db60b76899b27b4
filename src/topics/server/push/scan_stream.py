"""A bulk read as a stream: one slice a turn of the loop, and never more of it in memory than the client has room for.

The slice is read on the loop, where the state is; turning it into bytes is done on a pool thread; and while the client
has not taken what it was sent, nothing more is read. So a scan of any size costs other clients no more than a diff does
at a time, and a client that stops reading costs two slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from topics import logs
from topics.engine.read.read import Query
from topics.engine.read.scan import SLICE_BYTES, Scan, Step
from topics.errors import Code, TopicsError
from topics.server.http.messages import Response, Sink, Stream
from topics.server.limits.budget import STREAMS
from topics.server.loop.loads import Loading
from topics.server.push import scan_formats
from topics.storage.segments.cold import Cold

if TYPE_CHECKING:
    from topics.server.app import TopicsApp

log = logs.Log("scan")

T = TypeVar("T")

PROGRESS_SEQS = 100_000  # looked at and skipped before a reader is told how far that has come
PRESSED_PAUSE_MS = 5  # between two slices while the server runs late
ENCODING_BYTES = 2 * SLICE_BYTES  # a slice, and what it is turned into


class ScanStream(Stream):
    """One answer. At any moment it reads, waits for the pool, or waits for the client: never two of them."""

    high_water_bytes = SLICE_BYTES

    def __init__(
        self, app: TopicsApp, topic: str, query: Query, form: scan_formats.Form, *, upto_seq: int | None,
        release: Callable[[], None],
    ) -> None:  # fmt: skip
        super().__init__(Response(200, b"", form.content_type, ((b"cache-control", b"no-store"),)))
        self._app = app
        self._topic = topic
        self._scan = Scan(query, upto_seq=upto_seq)
        self._form = form
        self._release = release
        self._sink: Sink | None = None
        self._told_seq = query.from_seq
        self._loading: Loading | None = None
        self._full = False
        self._slow: asyncio.TimerHandle | None = None
        self._on_thread = False
        self._ends_with: TopicsError | None = None

    # --- for the transport and the server

    def opened(self, sink: Sink) -> None:
        self._sink = sink
        self._app.polls.add(self)
        self._next()

    def drained(self) -> None:
        if self._full:
            self._full = False
            if self._slow is not None:
                self._slow.cancel()
                self._slow = None
            self._next()

    def closed(self) -> None:
        self._release()  # may be called twice
        self._sink = None
        self._app.polls.discard(self)
        if self._loading is not None:
            self._loading.cancel()
        if self._slow is not None:
            self._slow.cancel()

    def end(self) -> None:
        """The server is going: the client is told, and goes on elsewhere or later."""
        self._fail(TopicsError(Code.SHUTTING_DOWN, "the server is stopping", retry_after_ms=1000))

    # --- slices

    def _next(self) -> None:
        try:
            self._step()
        except Cold as cold:
            self._loading = self._app.loads.load(cold, self._loaded)

    def _loaded(self, failure: BaseException | None) -> None:
        if failure is not None:
            log.failure("scan_failed", failure, topic=self._topic)
            self._fail(TopicsError(Code.INTERNAL, "stored records cannot be read; the server's log says why"))
        else:
            self._step()

    def _step(self) -> None:
        """One slice. Raises `Cold` if it needs the disk, and is none the worse for it."""
        if self._sink is None:
            return
        try:
            step = self._scan.step(lambda query: self._app.engine.read(self._topic, query))
        except Cold:
            raise
        except TopicsError as error:
            self._fail(error)
            return
        except Exception as error:  # a stream has no other place where this would be told
            log.failure("scan_failed", error, topic=self._topic)
            self._fail(TopicsError(Code.INTERNAL, "internal error"))
            return
        self._loading = None
        if step.slices or step.tombstone is not None or step.done:
            self._on_pool(lambda: self._encode(step), lambda data: self._encoded(step, data))
        elif step.next_from_seq - self._told_seq >= PROGRESS_SEQS:
            self._encoded(step, b"".join(self._form.progress(step.next_from_seq)))
        else:
            self._go_on()

    def _encode(self, step: Step) -> bytes:
        """On a pool thread, maybe long after it was asked for: a client that has left costs nothing more."""
        return b"" if self._sink is None else scan_formats.encode(self._form, step)

    def _encoded(self, step: Step, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            return
        self._told_seq = step.next_from_seq
        room = sink.write(data) if data else True
        if step.done:
            self._close()
        elif room:
            self._go_on()
        else:
            self._full = True
            self._slow = self._app.call_later(self._app.settings.slow_consumer_timeout_ms, self._too_slow)

    def _go_on(self) -> None:
        """In another turn: whoever waits for this one comes first."""
        if self._app.pressed:
            self._app.call_later(PRESSED_PAUSE_MS, self._next)
        else:
            self._app.loop.call_soon(self._next)

    def _on_pool(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """`then` on the loop with what came of `work`."""

        def done(found: asyncio.Future[T]) -> None:
            self._on_thread = False
            self._app.budget.charge(STREAMS, -ENCODING_BYTES)
            failure = found.exception()
            if failure is not None:
                log.failure("scan_failed", failure, topic=self._topic)
                self._fail(TopicsError(Code.INTERNAL, "stored records cannot be read; the server's log says why"))
                return
            then(found.result())
            if self._ends_with is not None:
                self._fail(self._ends_with)

        self._on_thread = True
        self._app.budget.charge(STREAMS, ENCODING_BYTES)
        self._app.loop.run_in_executor(self._app.pool, work).add_done_callback(done)

    def _fail(self, error: TopicsError) -> None:
        if self._on_thread:
            self._ends_with = error  # what is being encoded goes first: the form is in use
        elif self._sink is not None:
            self._sink.write(b"".join(self._form.error(error)))
            self._close()

    def _too_slow(self) -> None:
        if self._sink is not None:
            self._sink.give_up()
            self._close()

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            self._release()  # what is still to leave may take a while, and costs no more than the connection
            sink.close()
