"""The blocking client of Spark, on one kept connection: the calls of `Topics`, and its own for records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from topics.client import errors, request
from topics.client._sync.management import ManagementCalls
from topics.client._sync.server import ServerCalls
from topics.client.call import SEGMENTS, Backoff, Request, given, topic_path
from topics.client.connection import Connection, Retries
from topics.client.errors import TopicsError
from topics.client.items import End, Tombstone, encode
from topics.errors import Corrupt
from topics.model import wire
from topics.model.records import DiffRequest, ScanRequest
from topics.model.topic import ConfigPatch
from topics.storage.segments import record_run as runs
from topics.storage.segments.record_run import Run

PAGE_RECORDS = 1000


class Client(Connection, ManagementCalls, ServerCalls):  # type: ignore[override]  # its `_http` is the connection
    """A server, on one connection. Not thread-safe: each thread needs its own client."""

    def __init__(
        self, url: str = "http://127.0.0.1:4000", *, token: str | None = None, timeout_s: float = 60.0, retries: int = 5
    ) -> None:
        super().__init__(url, token=token, timeout_s=timeout_s, retries=Retries(retries))

    archived = ManagementCalls.report_archived

    def put_topic(self, topic: str, **config: Any) -> request.Put:
        return super().put_topic(topic, **_checked(config))

    def drop_topic(self, topic: str, *, if_empty: bool = False) -> wire.TopicDropped:  # type: ignore[override]
        return self.call("DELETE", topic_path(topic, if_empty=if_empty or None), wire.TopicDropped)

    # --- records

    def append(
        self,
        topic: str,
        records: Sequence[Mapping[str, Any] | Raw],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        config: Mapping[str, Any] | None = None,
        disable_backpressure: bool = False,
        return_seqs: bool = False,
    ) -> request.Written:
        """Append records: mappings with `data` and optionally `tag`, `node`, `meta`, or encoded JSON objects.

        Without an idempotency key a lost answer is not retried.
        """
        body = {
            "records": records,
            **given(
                node=node, idempotency_key=idempotency_key, create=create,
                config=None if config is None else _checked(config), disable_backpressure=disable_backpressure or None,
            ),
        }  # fmt: skip
        path = topic_path(topic, return_seqs=None if return_seqs else False)
        return self.call("POST", path, request.Written, body=body, safe=idempotency_key is not None)

    def diff(self, topic: str, *, from_seq: int = 0, wait_ms: int = 0, **fields: Any) -> request.Diff:
        """Read one page. `fields` are those of `DiffRequest`: limit, node, include_tags, filter, from_ts, epoch …"""
        body = encode({"from_seq": from_seq, "wait_ms": wait_ms, **_fields(fields, DiffRequest)})
        return request.diff_answer(self.send(Request("POST", topic_path(topic, "diff"), body, wait_ms=wait_ms)))

    def read(self, topic: str, *, from_seq: int = 0, **fields: Any) -> Iterator[request.Record | request.Tombstone]:
        """Yield the records after the cursor, page by page up to the head, and a tombstone at each gap.

        `fields` are those of `diff`; `limit` is the size of a page.
        """
        fields = {"limit": PAGE_RECORDS, **fields}
        while True:
            page = self.diff(topic, from_seq=from_seq, **fields)
            if page.tombstone is not None:
                yield page.tombstone
            yield from page.records
            from_seq = page.next_from_seq
            fields["epoch"] = page.epoch
            fields.pop("from_ts", None)
            if page.caught_up:
                return

    def scan(self, topic: str, *, from_seq: int = 0, **fields: Any) -> Iterator[Run | request.Tombstone | request.End]:
        """Read a range in bulk: yield runs of records, a tombstone at each gap, and last an `End`.

        `fields` are those of `ScanRequest`: upto_seq, node, filter … After a broken connection the scan continues
        after the last complete piece, so that no record is repeated or left out.
        """
        backoff = Backoff()
        while True:
            try:
                for piece in self._pieces(topic, {"from_seq": from_seq, **_fields(fields, ScanRequest)}):
                    backoff.reset()
                    if isinstance(piece, request.End):
                        yield piece
                        return
                    from_seq, epoch = resume_at(piece)
                    if epoch is not None:
                        fields["epoch"] = epoch
                    if not isinstance(piece, At):
                        yield piece
            except TopicsError as error:
                self.wait_after(error, backoff, self._retries)

    def _pieces(self, topic: str, body: Mapping[str, Any]) -> Iterator[Piece]:
        path = topic_path(topic, "scan")
        try:
            with self.opened(Request("POST", path, encode(body), accept=SEGMENTS)) as response:
                yield from read_pieces(response.read, source=f"{self.url}{path}")
        except (CutOff, Corrupt) as error:
            raise self.unreachable(error) from error


def _fields(fields: Mapping[str, Any], request: type[Struct]) -> dict[str, Any]:
    """Return the fields that are not None. Raise `TypeError` for an unknown field: a server would ignore it."""
    for name in fields:
        if name not in request.__struct_fields__:
            raise TypeError(f"there is no field {name!r}; the fields are {', '.join(request.__struct_fields__)}")
    return given(**fields)


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings after a check of their names. None is kept: it resets a setting to its default."""
    _fields(config, ConfigPatch)
    return dict(config)


# --- the pieces of a bulk answer (`application/vnd.topics.segments`)
#
# A piece is a head of 8 bytes (u32 LE length, u32 LE kind) and a body: records in the form of a segment file, or JSON.
# The answer ends with an `End`. If it stops earlier, it was cut off, and `resume_at` gives the cursor for the rest.

HEAD_BYTES = 8
RECORDS, CONTROL = 1, 2


class CutOff(Exception):
    """The answer stopped before its `End`, inside a piece or between two."""


class At(Struct):
    """Everything up to this cursor was scanned; the records after the previous piece were filtered out."""

    next_from_seq: int


class _BulkControl(Struct):
    tombstone: Tombstone | None = None
    end: End | None = None
    at: At | None = None
    error: msgspec.Raw = msgspec.Raw()


Piece = Run | Tombstone | At | End
_decode_control = msgspec.json.Decoder(_BulkControl).decode


def read_pieces(take: Callable[[int], bytes], *, source: str) -> Iterator[Piece]:
    """Yield every piece up to the `End`. `take(n)` returns n bytes, or fewer at the end of the connection.

    Raise `CutOff` if the answer is incomplete, `Corrupt` if a checksum is wrong, and the error that the server reports.
    """
    while True:
        head = _exactly(take, HEAD_BYTES)
        body = _exactly(take, int.from_bytes(head[:4], "little"))
        kind = int.from_bytes(head[4:], "little")
        if kind == RECORDS:
            yield runs.decode(body, source=source)
        elif kind == CONTROL:
            found = _decode_control(body)
            if bytes(found.error):
                raise errors.from_answer(200, None, b'{"error":%b}' % bytes(found.error))
            if (piece := found.tombstone or found.end or found.at) is not None:
                yield piece
            if found.end is not None:
                return
        # An unknown kind comes from a newer server and is ignored: the API only grows by addition.


def resume_at(piece: Piece) -> tuple[int, int | None]:
    """Return the cursor after a piece, and the new epoch if it changed, else None."""
    if isinstance(piece, Run):
        return piece.last, None
    if isinstance(piece, Tombstone):
        return piece.resume_seq, piece.epoch if piece.reason == "recreated" else None
    return piece.next_from_seq, None


def _exactly(take: Callable[[int], bytes], size_bytes: int) -> bytes:
    found = take(size_bytes) if size_bytes else b""
    if len(found) < size_bytes:
        raise CutOff("the answer was cut off")
    return found
