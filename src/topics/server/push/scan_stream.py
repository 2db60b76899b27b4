"""A bulk read as a stream: one slice per turn of the loop, and nothing more while the client does not read.

A slice is read on the loop, where the state is, and encoded on a pool thread. A scan of any size therefore delays other
clients no more than a diff does, and a client that stops reading costs the memory of two slices.
"""

import asyncio

from topics import logs
from topics.engine.read.scan import SLICE_BYTES, Scan, ScanStep
from topics.errors import Code, TopicsError
from topics.server.access.caller import Slot
from topics.server.http.messages import Response
from topics.server.limits.budget import STREAMS
from topics.server.loop.runtime import NOT_LOADING, unreadable
from topics.server.push import scan_formats as formats
from topics.server.push.dispatcher import PushServices
from topics.server.push.live_stream import LiveConnection
from topics.storage.segments.cold import Cold

log = logs.Log("scan")

PROGRESS_SEQS = 100_000  # looked at and skipped before the progress is reported
PRESSED_PAUSE_MS = 5  # between two slices while the server runs late
ENCODING_BYTES = 2 * SLICE_BYTES  # a slice, and its encoding


class ScanStream(LiveConnection):
    """One answer. It either reads, waits for the pool, or waits for the client: never two at a time."""

    high_water_bytes = SLICE_BYTES
    kind = "scan"

    def __init__(self, services: PushServices, scan: Scan, topic: str, form: formats.ScanFormat, *, slot: Slot) -> None:
        head = Response(200, b"", form.content_type, ((b"cache-control", b"no-store"),))
        super().__init__(services.runtime, head, slot=slot, heartbeat_ms=0)
        self._throttle = services.throttle
        self._budget = services.budget
        self._topic = topic
        self._scan = scan
        self._form = form
        self._reported_seq = scan.query.from_seq
        self._loading = NOT_LOADING
        self._on_thread = False
        self._ends_with: TopicsError | None = None

    def begin(self) -> None:
        self._next()

    def resume(self, full_ms: float) -> None:
        self._next()

    def ended(self) -> None:
        self._loading.cancel()

    def finish(self) -> None:
        if self.open:
            self.slot.release()  # sending the rest may take a while, but costs no more than the connection
        super().finish()

    def revoke(self, reason: str) -> None:
        self._fail(TopicsError(Code.UNAUTHORIZED, reason))

    def end(self) -> None:
        """End the answer with an error: the server stops, and the client continues later."""
        self._fail(TopicsError(Code.SHUTTING_DOWN, "the server is stopping", retry_after_ms=1000))

    def _next(self) -> None:
        self._loading = self.runtime.attempt(self._step, self._cannot_read)

    def _cannot_read(self, failure: BaseException) -> None:
        self._fail(unreadable(failure))

    def _step(self) -> None:
        """Read one slice. Raise `Cold`, without any effect, if it must be loaded first."""
        if not self.open:
            return
        try:
            step = self._scan.step(lambda query: self.runtime.engine.read(self._topic, query))
        except Cold:
            raise
        except TopicsError as error:
            self._fail(error)
            return
        except OSError as error:
            self._cannot_read(error)
            return
        except Exception as error:  # a stream has no caller that would report this
            log.failure("scan_failed", error, topic=self._topic)
            self._fail(TopicsError(Code.INTERNAL, "internal error"))
            return
        if step.slices or step.tombstone is not None or step.done:
            self._on_pool(step)
        elif step.next_from_seq - self._reported_seq >= PROGRESS_SEQS:
            self._encoded(step, b"".join(self._form.progress(step.next_from_seq)))
        else:
            self._continue()

    def _encoded(self, step: ScanStep, data: bytes) -> None:
        if not self.open:
            return
        self._reported_seq = step.next_from_seq
        room = self.send(data) if data else True
        if step.done:
            self.finish()
        elif room:
            self._continue()

    def _continue(self) -> None:
        """Read the next slice in a later turn: other requests come first."""
        if self._throttle.pressed:
            self.runtime.call_later(PRESSED_PAUSE_MS, self._next)
        else:
            self.runtime.loop.call_soon(self._next)

    def _on_pool(self, step: ScanStep) -> None:
        """Encode a slice on a pool thread, then send it. It is empty if the client has left meanwhile."""

        def done(found: asyncio.Future[bytes]) -> None:
            self._on_thread = False
            self._budget.charge(STREAMS, -ENCODING_BYTES)
            failure = found.exception()
            if failure is not None:
                self._fail(unreadable(failure))
                return
            self._encoded(step, found.result())
            if self._ends_with is not None:
                self._fail(self._ends_with)

        self._on_thread = True
        self._budget.charge(STREAMS, ENCODING_BYTES)
        encoding = self.runtime.in_pool(lambda: formats.encode(self._form, step) if self.open else b"")
        encoding.add_done_callback(done)

    def _fail(self, error: TopicsError) -> None:
        if self._on_thread:
            self._ends_with = error  # after the slice that is being encoded: the form is in use
        elif self.open:
            self.send(b"".join(self._form.error(error)))
            self.finish()
