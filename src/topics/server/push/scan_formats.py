"""The three forms a bulk read is answered in. Which one, `Accept` says; what is in it, the engine.

`application/x-ndjson`: a record a line, as diff shows it; between them `{"tombstone":{…}}` where a range was lost.

`application/vnd.topics.segments`: pieces, each behind a head of 8 bytes:

    offset  size  field
    0       4     length  u32 LE; bytes of the piece
    4       4     kind    u32 LE; 1 records, 2 JSON

A piece of records is a run in the form of a segment file (`storage/segments/run.py`): its index says where every record
and its parts lie, so that a reader cuts it without parsing. A run has a place for every seq it covers; records that the
reader does not get are marked there. Tags are always in the index, whatever `include_tags` says. A JSON piece is what a
line of the first form would be, or `{"at":{"next_from_seq":…}}`: everything up to there was looked at and skipped.

`application/vnd.apache.arrow.stream`: Arrow IPC, where the server has pyarrow. Columns kind, topic, seq, ts, node, tag,
meta, data, gap_to, reason; a lost range is a row of kind `gap`. Tags are always there. The end and an error are
metadata of a batch without rows.

All three end with `{"end":{"next_from_seq":…,"head_seq":…,"earliest_seq":…,"epoch":…}}`. An answer that stops before is
cut off, or says why it stopped with `{"error":{…}}` in the words of an error answer.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import msgspec

from topics.engine.read.read import Tombstone
from topics.engine.read.scan import Step
from topics.errors import Code, TopicsError
from topics.model.records import Projection
from topics.server.http.messages import Request
from topics.storage.segments import run as runs
from topics.storage.segments.run import Run

NDJSON = b"application/x-ndjson"
SEGMENTS = b"application/vnd.topics.segments"
ARROW = b"application/vnd.apache.arrow.stream"
RECORDS, CONTROL = 1, 2  # kinds of pieces; a number is never used for anything else

_encode = msgspec.json.encode


class Form(Protocol):
    """One way to say it. Not called by two threads at once."""

    content_type: bytes

    def records(self, run: Run, step: Step) -> list[bytes]: ...

    def tombstone(self, gap: Tombstone, step: Step) -> list[bytes]: ...

    def progress(self, next_from_seq: int) -> list[bytes]:
        """Nothing was found for a long time; where a reader who is cut off may go on."""

    def end(self, step: Step) -> list[bytes]: ...

    def error(self, error: TopicsError) -> list[bytes]: ...


def form_for(request: Request, projection: Projection, topic: str) -> Form:
    """What `Accept` asks for; JSON lines if it asks for nothing. Raises 406."""
    accept = request.headers.get(b"accept", b"").lower() or b"*/*"
    for media in _wanted(accept):
        if media in (NDJSON, b"*/*", b"application/*"):
            return Lines(projection)
        if media == SEGMENTS:
            return Pieces(projection)
        if media == ARROW:
            return _arrow(projection, topic)
    forms = ", ".join(form.decode() for form in (NDJSON, SEGMENTS, ARROW))
    raise TopicsError(Code.NOT_ACCEPTABLE, f"a scan is answered as one of {forms}")


def encode(form: Form, step: Step) -> bytes:
    """Everything a step has to say. Runs on a pool thread: what it looks at does not change any more."""
    parts: list[bytes] = []
    if step.tombstone is not None:
        parts += form.tombstone(step.tombstone, step)
    for piece in step.slices:
        parts += form.records(piece.run(), step)
    if step.done:
        parts += form.end(step)
    return b"".join(parts)


class Lines:
    content_type = NDJSON

    def __init__(self, projection: Projection) -> None:
        self._projection = projection

    def records(self, run: Run, step: Step) -> list[bytes]:
        return [runs.lines(run, self._projection)]

    def tombstone(self, gap: Tombstone, step: Step) -> list[bytes]:
        return [_encode(_told(gap, step)), b"\n"]

    def progress(self, next_from_seq: int) -> list[bytes]:
        return []  # every line is a record, a loss or the end

    def end(self, step: Step) -> list[bytes]:
        return [_encode(_end(step)), b"\n"]

    def error(self, error: TopicsError) -> list[bytes]:
        return [_encode(_error(error)), b"\n"]


class Pieces:
    content_type = SEGMENTS

    def __init__(self, projection: Projection) -> None:
        self._projection = Projection(meta=projection.meta)

    def records(self, run: Run, step: Step) -> list[bytes]:
        if not self._projection.is_stored_form and run.columns.metas is not None:
            run = runs.project(run, self._projection)
        parts = runs.encode(run, topic_id=step.topic.topic_id, epoch=step.topic.epoch)
        return [_head(sum(map(len, parts)), RECORDS), *parts]

    def tombstone(self, gap: Tombstone, step: Step) -> list[bytes]:
        return self._control(_told(gap, step))

    def progress(self, next_from_seq: int) -> list[bytes]:
        return self._control({"at": {"next_from_seq": next_from_seq}})

    def end(self, step: Step) -> list[bytes]:
        return self._control(_end(step))

    def error(self, error: TopicsError) -> list[bytes]:
        return self._control(_error(error))

    def _control(self, told: Any) -> list[bytes]:
        body = _encode(told)
        return [_head(len(body), CONTROL), body]


class Arrow:
    content_type = ARROW

    def __init__(self, arrow: Any, projection: Projection, topic: str) -> None:
        self._arrow = arrow
        self._stream = arrow.StreamEncoder()
        self._meta = projection.meta
        self._topic = topic

    def records(self, run: Run, step: Step) -> list[bytes]:
        self._stream.write(self._arrow.record_batch(run, self._topic, meta=self._meta))
        return [self._stream.take()]

    def tombstone(self, gap: Tombstone, step: Step) -> list[bytes]:
        self._stream.write(self._arrow.gap_batch(self._topic, gap.gap_from, gap.gap_to, gap.reason))
        return [self._stream.take()]

    def progress(self, next_from_seq: int) -> list[bytes]:
        return []

    def end(self, step: Step) -> list[bytes]:
        self._stream.note("end", _end(step)["end"])
        self._stream.close()
        return [self._stream.take()]

    def error(self, error: TopicsError) -> list[bytes]:
        self._stream.note("error", _error(error)["error"])
        return [self._stream.take()]


def _arrow(projection: Projection, topic: str) -> Arrow:
    try:
        arrow = importlib.import_module("topics.arrow")  # by name: the server starts without pyarrow
    except ImportError:
        raise TopicsError(
            Code.NOT_ACCEPTABLE,
            "this server has no pyarrow; install topics[spark] beside it, or ask for application/x-ndjson",
        ) from None
    return Arrow(arrow, projection, topic)


def _wanted(accept: bytes) -> list[bytes]:
    """Media types by preference; the first of equals first."""
    found: list[tuple[float, bytes]] = []
    for part in accept.split(b","):
        media, *parameters = (piece.strip() for piece in part.split(b";"))
        quality = next((piece[2:] for piece in parameters if piece.startswith(b"q=")), b"1")
        try:
            found.append((float(quality), media))
        except ValueError:
            found.append((1.0, media))
    return [media for quality, media in sorted(found, key=lambda row: -row[0]) if quality > 0]


def _head(size_bytes: int, kind: int) -> bytes:
    return size_bytes.to_bytes(4, "little") + kind.to_bytes(4, "little")


def _told(gap: Tombstone, step: Step) -> dict[str, Any]:
    told = msgspec.structs.asdict(gap)
    return {"tombstone": told | {"epoch": step.topic.epoch}}


def _end(step: Step) -> dict[str, Any]:
    topic = step.topic
    told = {"next_from_seq": step.next_from_seq, "head_seq": topic.head, "earliest_seq": topic.earliest}
    return {"end": told | {"epoch": topic.epoch}}


def _error(error: TopicsError) -> dict[str, Any]:
    told: dict[str, Any] = {"code": error.code.wire, "message": error.message}
    if error.detail is not None:
        told["detail"] = error.detail
    return {"error": told}
