"""A bulk read as a stream: one slice per turn of the loop, and nothing more while the client does not read.

A slice is read on the loop, where the state is, and encoded on a pool thread. A scan of any size therefore delays other
clients no more than a diff does, and a client that stops reading costs the memory of two slices.

The formats, chosen by `Accept`:

`application/x-ndjson`, or `text/plain`: one record per line, as diff returns it; `{"tombstone":{…}}` where a range was
lost.

`application/vnd.topics.segments`: pieces, each after a head of 8 bytes:

    offset  size  field
    0       4     length  u32 LE; bytes of the piece
    4       4     kind    u32 LE; 1 records, 2 JSON

A piece of records is a run in the format of a segment file (`storage/segments/record_run.py`): its index has the
offsets of every record and its parts, so that a reader slices it without parsing. A run has an entry for every seq it
covers; records that the reader does not get are marked there. Tags are always in the index, whatever `include_tags` is.
A JSON piece is a line of the first format, or `{"at":{"next_from_seq":…}}`: everything up to there was scanned and
skipped.

`application/vnd.apache.arrow.stream`: Arrow IPC, if the server has pyarrow. Columns kind, topic, seq, ts, node, tag,
meta, data, gap_to, reason; a lost range is a row of kind `gap`. Tags are always present. The end and an error are
metadata of a batch without rows.

All end with `{"end":{"next_from_seq":…,"head_seq":…,"earliest_seq":…,"epoch":…}}`. An answer that stops before
was cut off, or reports why it stopped with `{"error":{…}}`, which has the fields of an error answer.
"""

import asyncio
import importlib
from typing import Any

import msgspec

from topics import logs
from topics.engine.read.read import Tombstone
from topics.engine.read.scan import SLICE_BYTES, Scan, ScanStep
from topics.errors import Code, TopicsError
from topics.model.records import Projection
from topics.server.access.caller import Slot
from topics.server.http.messages import Request, Response, weighted
from topics.server.limits.budget import STREAMS
from topics.server.loop.runtime import NOT_LOADING, unreadable
from topics.server.push.dispatcher import PushServices
from topics.server.push.live_stream import LiveConnection
from topics.storage.segments import record_run as runs
from topics.storage.segments.cold import Cold
from topics.storage.segments.record_run import Run

NDJSON = b"application/x-ndjson"
JSON = b"application/json"  # what `curl --json` accepts; every line is JSON
TEXT = b"text/plain"  # the same lines, for browsers and generated clients that know no other type
TEXT_UTF8 = TEXT + b"; charset=utf-8"
SEGMENTS = b"application/vnd.topics.segments"
ARROW = b"application/vnd.apache.arrow.stream"
RECORDS, CONTROL = 1, 2  # kinds of pieces; a number is never used for anything else

_encode = msgspec.json.encode


class ScanFormat:
    """Encodes the parts of one answer: here as JSON lines. Never used by two threads at a time."""

    def __init__(self, projection: Projection, content_type: bytes = NDJSON) -> None:
        self._projection = projection
        self.content_type = content_type

    def records(self, run: Run, step: ScanStep) -> list[bytes]:
        """Encode a run of records."""
        return [runs.lines(run, self._projection)]

    def control(self, content: dict[str, Any]) -> list[bytes]:
        """Encode an object between records: a tombstone, the end, or an error."""
        return [_encode(content), b"\n"]

    def tombstone(self, gap: Tombstone, step: ScanStep) -> list[bytes]:
        return self.control({"tombstone": msgspec.structs.asdict(gap) | {"epoch": step.topic.epoch}})

    def progress(self, next_from_seq: int) -> list[bytes]:
        """Encode the position after a long range without matches: a reader that is cut off may continue there.

        A JSON line is a record, a tombstone or the end.
        """
        return []

    def end(self, step: ScanStep) -> list[bytes]:
        topic = step.topic
        positions = {"next_from_seq": step.next_from_seq, "head_seq": topic.head, "earliest_seq": topic.earliest}
        return self.control({"end": positions | {"epoch": topic.epoch}})

    def error(self, error: TopicsError) -> list[bytes]:
        described: dict[str, Any] = {"code": error.code.wire, "message": error.message}
        if error.detail is not None:
            described["detail"] = error.detail
        return self.control({"error": described})


def format_for(request: Request, projection: Projection, topic: str) -> ScanFormat:
    """Return the format that `Accept` prefers; JSON lines if it is missing. Raise 406 if it names no known one."""
    accept = request.headers.get(b"accept", b"").lower() or b"*/*"
    for media, weight in sorted(weighted(accept, malformed=1), key=lambda row: -row[1]):
        if weight <= 0:
            break
        if media in (NDJSON, JSON, b"*/*", b"application/*"):
            return ScanFormat(projection)
        if media == TEXT:
            return ScanFormat(projection, TEXT_UTF8)
        if media == SEGMENTS:
            return SegmentFormat(projection)
        if media == ARROW:
            return ArrowFormat(projection, topic)
    names = ", ".join(name.decode() for name in (NDJSON, TEXT, SEGMENTS, ARROW))
    wanted = accept.decode("ascii", "replace")
    raise TopicsError(Code.NOT_ACCEPTABLE, f"a scan cannot be answered as {wanted}; Accept must name one of {names}")


def encode(form: ScanFormat, step: ScanStep) -> bytes:
    """Return the bytes of a step. Runs on a pool thread: the data of a step does not change any more."""
    parts: list[bytes] = []
    if step.tombstone is not None:
        parts += form.tombstone(step.tombstone, step)
    for piece in step.slices:
        parts += form.records(piece.run(), step)
    if step.done:
        parts += form.end(step)
    return b"".join(parts)


class SegmentFormat(ScanFormat):
    def __init__(self, projection: Projection) -> None:
        super().__init__(Projection(meta=projection.meta), SEGMENTS)

    def records(self, run: Run, step: ScanStep) -> list[bytes]:
        if not self._projection.is_stored_form and run.columns.metas is not None:
            run = runs.project(run, self._projection)
        parts = runs.encode(run, topic_id=step.topic.topic_id, epoch=step.topic.epoch)
        return [_head(sum(map(len, parts)), RECORDS), *parts]

    def control(self, content: dict[str, Any]) -> list[bytes]:
        body = _encode(content)
        return [_head(len(body), CONTROL), body]

    def progress(self, next_from_seq: int) -> list[bytes]:
        return self.control({"at": {"next_from_seq": next_from_seq}})


class ArrowFormat(ScanFormat):
    def __init__(self, projection: Projection, topic: str) -> None:
        super().__init__(projection, ARROW)
        try:
            self._arrow: Any = importlib.import_module("topics.arrow")  # by name: the server starts without pyarrow
        except ImportError:
            what = f"this server has no pyarrow; ask for {NDJSON.decode()}, or add pyarrow to the server's environment"
            raise TopicsError(Code.NOT_ACCEPTABLE, what) from None
        self._stream = self._arrow.StreamEncoder()
        self._topic = topic

    def records(self, run: Run, step: ScanStep) -> list[bytes]:
        self._stream.write(self._arrow.record_batch(run, self._topic, meta=self._projection.meta))
        return [self._stream.take()]

    def tombstone(self, gap: Tombstone, step: ScanStep) -> list[bytes]:
        self._stream.write(self._arrow.gap_batch(self._topic, gap.gap_from, gap.gap_to, gap.reason))
        return [self._stream.take()]

    def control(self, content: dict[str, Any]) -> list[bytes]:
        [(kind, fields)] = content.items()
        self._stream.note(kind, fields)
        if kind == "end":
            self._stream.close()
        return [self._stream.take()]


def _head(size_bytes: int, kind: int) -> bytes:
    return size_bytes.to_bytes(4, "little") + kind.to_bytes(4, "little")


log = logs.Log("scan")

PROGRESS_SEQS = 100_000  # looked at and skipped before the progress is reported
PRESSED_PAUSE_MS = 5  # between two slices while the server runs late
ENCODING_BYTES = 2 * SLICE_BYTES  # a slice, and its encoding


class ScanStream(LiveConnection):
    """One answer. It either reads, waits for the pool, or waits for the client: never two at a time."""

    high_water_bytes = SLICE_BYTES
    kind = "scan"

    def __init__(self, services: PushServices, scan: Scan, topic: str, form: ScanFormat, *, slot: Slot) -> None:
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
        encoding = self.runtime.in_pool(lambda: encode(self._form, step) if self.open else b"")
        encoding.add_done_callback(done)

    def _fail(self, error: TopicsError) -> None:
        if self._on_thread:
            self._ends_with = error  # after the slice that is being encoded: the form is in use
        elif self.open:
            self.send(b"".join(self._form.error(error)))
            self.finish()
