"""The blocking client: one connection that is kept open. It retries if a retry can help and is safe."""

from __future__ import annotations

import http.client
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import Raw

from topics.client import bulk_pieces, request
from topics.client.request import ApiCall
from topics.errors import Code, Corrupt, TopicsError
from topics.storage.segments.record_run import Run

Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 10.0
FIRST_PAUSE_MS = 50
LONGEST_PAUSE_MS = 5_000
PAGE_RECORDS = 1000
NO_LAST = (1 << 64) - 1  # the highest seq there could be


class Unreachable(TopicsError):
    """No answer, or an incomplete one: the server is not running, or the connection broke."""

    def __init__(self, url: str, cause: Exception) -> None:
        super().__init__(Code.NOT_READY, f"no answer from {url}: {cause or type(cause).__name__}")


class Refused(TopicsError):
    """The server does not know the key, or the key lacks a right. The message says which, for what, and where."""


class NoPyArrow(ImportError):
    """Reading from a lake needs pyarrow, and it is not installed."""

    def __init__(self) -> None:
        super().__init__("reading from a lake needs pyarrow, which is not installed: pip install pyarrow")


class Client:
    """The verbs of a server as methods. Not thread-safe: each thread needs its own client."""

    def __init__(
        self, url: str = "http://127.0.0.1:4000", *, token: str | None = None, timeout_s: float = 60.0, retries: int = 5
    ) -> None:
        self.url = url
        self._server = request.server_at(url)
        self._token = token
        self._timeout_s = timeout_s
        self._retries = retries
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- topics

    def put_topic(self, topic: str, **config: Any) -> request.Put:
        return self._call(request.put_topic(topic, config), request.Put)

    def topic(self, topic: str, *, touch: bool = False) -> request.State:
        return self._call(request.get_topic(topic, touch=touch), request.State)

    def topics(self, prefix: str = "") -> Iterator[request.Summary]:
        cursor = None
        while True:
            page = self._call(request.list_topics(prefix=prefix, cursor=cursor), request.Topics)
            yield from page.topics
            cursor = page.next_cursor
            if cursor is None:
                return

    def drop_topic(self, topic: str, *, if_empty: bool = False) -> request.Dropped:
        return self._call(request.drop_topic(topic, if_empty=if_empty), request.Dropped)

    # --- records

    def append(self, topic: str, records: Sequence[Mapping[str, Any] | Raw], **options: Any) -> request.Written:
        """Append records; options as in `request.append`. Without an idempotency key a lost answer is not retried."""
        return self._call(request.append(topic, records, **options), request.Written)

    def diff(self, topic: str, **fields: Any) -> request.Diff:
        return request.diff_answer(self._with_retries(request.diff(topic, **fields)))

    def read(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        upto_seq: int | None = None,
        lake: str | os.PathLike[str] | None = None,
        **fields: Any,
    ) -> Iterator[request.Record | request.Tombstone]:
        """Yield the records after the cursor, page by page up to the head, and a tombstone at each gap.

        `upto_seq` is the last seq to read. `fields` are those of `request.diff`; `limit` is the size of a page.

        `lake` is the directory of `topics pipeline archive`: records that the server no longer has are read from
        there, and only ranges that neither has are reported as lost. Needs pyarrow.
        """
        fields = {"limit": PAGE_RECORDS, **fields}
        request.diff(topic, from_seq=from_seq, **fields)  # raise for an unknown field now, not at the first page
        last = NO_LAST if upto_seq is None else upto_seq
        if lake is not None:
            return request.upto(self._read_healed(topic, lake, from_seq, last, fields), last)
        return request.upto(self._read(topic, from_seq, last, fields), last)

    def _read(
        self, topic: str, from_seq: int, last: int, fields: dict[str, Any]
    ) -> Iterator[request.Record | request.Tombstone]:
        while from_seq < last:
            page = self.diff(topic, from_seq=from_seq, **fields)
            if page.tombstone is not None:
                yield page.tombstone
            yield from page.records
            from_seq = page.next_from_seq
            fields["epoch"] = page.epoch
            fields.pop("from_ts", None)
            if page.caught_up:
                return

    def _read_healed(
        self, topic: str, lake: str | os.PathLike[str], from_seq: int, last: int, fields: dict[str, Any]
    ) -> Iterator[request.Record | request.Tombstone]:
        try:
            from topics.client import lake_read
            from topics.lake import Lake
        except ModuleNotFoundError as error:
            if error.name is None or error.name.split(".")[0] != "pyarrow":
                raise
            raise NoPyArrow() from None

        source = lake_read.HealedTopic(topic, Lake(os.fspath(lake)), self.diff, lambda: self._found(topic))
        return lake_read.read(source, from_seq=from_seq, last=last, fields=fields)

    def _found(self, topic: str) -> request.State | None:
        try:
            return self.topic(topic)
        except TopicsError as error:
            if error.code is not Code.TOPIC_NOT_FOUND:
                raise
            return None

    def scan(self, topic: str, *, from_seq: int = 0, **fields: Any) -> Iterator[Run | request.Tombstone | request.End]:
        """Read a range in bulk: yield runs of records, a tombstone at each gap, and last an `End`.

        `fields` are those of `request.scan`. After a broken connection the scan continues after the last complete
        piece, so that no record is repeated or left out.
        """
        attempt = 0
        while True:
            try:
                for piece in self._pieces(request.scan(topic, from_seq=from_seq, **fields)):
                    attempt = 0
                    if isinstance(piece, request.End):
                        yield piece
                        return
                    from_seq, epoch = bulk_pieces.resume_at(piece)
                    if epoch is not None:
                        fields["epoch"] = epoch
                    if not isinstance(piece, bulk_pieces.At):
                        yield piece
            except TopicsError as error:
                if not error.code.retryable or attempt >= self._retries:
                    raise
                pause_ms = error.retry_after_ms
            time.sleep(_pause_s(attempt, pause_ms))
            attempt += 1

    def delete(
        self, topic: str, *, before_seq: int | None = None, match: str | Sequence[str] | None = None, **options: Any
    ) -> request.Deleted:
        """Delete records; see `request.delete` for the options."""
        return self._call(request.delete(topic, before_seq=before_seq, match=match, **options), request.Deleted)

    def archived(self, topic: str, *, seq: int, epoch: int, trimmed_seq: int = 0) -> request.Archived:
        """Report that an archive has every record of this epoch of the topic up to `seq`.

        An archive that deletes archived records from the topic reports the last one first, as `trimmed_seq`.
        """
        call = request.archived(topic, seq=seq, epoch=epoch, trimmed_seq=trimmed_seq)
        return self._call(call, request.Archived)

    def put_consumer(self, topic: str, consumer: str, *, seq: int, epoch: int) -> request.StoredConsumer:
        """Store the position of a named consumer in this epoch of the topic."""
        return self._call(request.put_consumer(topic, consumer, seq=seq, epoch=epoch), request.StoredConsumer)

    # --- routers

    def router(self, router: str) -> request.Router:
        return self._call(request.get_router(router), request.Router)

    def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> Iterator[request.RouterSummary]:
        """Yield the routers that the key may see."""
        cursor = None
        while True:
            asked = request.list_routers(prefix=prefix, source=source, dest=dest, cursor=cursor)
            page = self._call(asked, request.Routers)
            yield from page.routers
            cursor = page.next_cursor
            if cursor is None:
                return

    def is_ready(self) -> bool:
        try:
            self._send(request.ready())
        except TopicsError:
            return False
        return True

    # --- inside

    def _pieces(self, call: ApiCall) -> Iterator[bulk_pieces.Piece]:
        """Yield the pieces of one attempt, on a separate connection: other calls may run before the answer ends."""
        connection = None
        try:
            connection = self._connect()
            response = self._exchange(connection, call)
            if response.status != 200:
                raise self._error(call, response, response.read())
            yield from bulk_pieces.read(response.read, source=f"{self.url}{call.path}")
        except (OSError, http.client.HTTPException, bulk_pieces.CutOff, Corrupt) as error:
            raise Unreachable(self.url, error) from error
        finally:
            if connection is not None:
                connection.close()

    def _call(self, call: ApiCall, answer: type[Answer]) -> Answer:
        return msgspec.json.decode(self._with_retries(call), type=answer)

    def _with_retries(self, call: ApiCall) -> bytes:
        """Send a call. Retry a retryable error, and a missing answer if the call is safe to repeat."""
        attempt = 0
        while True:
            try:
                return self._send(call)
            except Unreachable:
                if not call.safe or attempt >= self._retries:
                    raise
                pause_ms = None
            except TopicsError as error:
                if not error.code.retryable or error.code is Code.TOPIC_FULL or attempt >= self._retries:
                    raise
                pause_ms = error.retry_after_ms
            time.sleep(_pause_s(attempt, pause_ms))
            attempt += 1

    def _send(self, call: ApiCall) -> bytes:
        response = self._open(call)
        try:
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(self.url, error) from error
        if not 200 <= response.status < 300:
            raise self._error(call, response, body)
        return body

    def _error(self, call: ApiCall, response: http.client.HTTPResponse, body: bytes) -> TopicsError:
        headers = {name.lower(): value for name, value in response.getheaders()}
        error = request.error_of(response.status, headers, body)
        if error.code not in (Code.UNAUTHORIZED, Code.FORBIDDEN):
            return error
        message = request.refusal(error, call, self.url, has_key=self._token is not None)
        return Refused(error.code, message, detail=error.detail)

    def _open(self, call: ApiCall) -> http.client.HTTPResponse:
        """Return the head of the answer. If a kept connection was closed by the server, try once on a new one."""
        kept = self._connection is not None
        while True:
            try:
                if self._connection is None:
                    self._connection = self._connect()
                return self._exchange(self._connection, call)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not kept or not call.safe:
                    raise Unreachable(self.url, error) from error
                kept = False

    def _connect(self) -> http.client.HTTPConnection:
        make = http.client.HTTPSConnection if self._server.secure else http.client.HTTPConnection
        connection = make(self._server.host, self._server.port, timeout=CONNECT_TIMEOUT_S)
        connection.connect()
        return connection

    def _exchange(self, connection: http.client.HTTPConnection, call: ApiCall) -> http.client.HTTPResponse:
        if connection.sock is not None:
            connection.sock.settimeout(self._timeout_s + call.timeout_ms / 1000)
        connection.request(call.method, self._server.prefix + call.path, call.body or None, call.headers(self._token))
        return connection.getresponse()


def _pause_s(attempt: int, retry_after_ms: int | None) -> float:
    """Return the pause that the server asked for, or an exponential one; with jitter, so that clients spread out."""
    pause_ms = retry_after_ms if retry_after_ms is not None else min(FIRST_PAUSE_MS * 2**attempt, LONGEST_PAUSE_MS)
    return pause_ms * random.uniform(0.8, 1.2) / 1000
