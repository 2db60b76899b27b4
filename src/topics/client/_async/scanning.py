"""Reading a range of a topic in one streamed answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing

from msgspec import Struct, structs

from topics.client._async import tools
from topics.client._async.transport import AsyncTransport, fields_of, topic_path
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import Gap, Match, Record
from topics.client.retry import Backoff
from topics.client.scan_lines import Piece, ScanEnd, ScanParser, ScanTombstone

NDJSON = "application/x-ndjson"
SILENCE_S = 60.0


class ScanFields(Struct, kw_only=True):
    """The range of a scan, and the records of it that are wanted."""

    from_seq: int = 0
    upto_seq: int | None = None
    epoch: int | None = None
    node: str | Sequence[str] | None = None
    filter: Match | None = None
    from_ts: int | None = None

    def after(self, piece: Piece) -> ScanFields:
        """Return what is left to scan after a piece."""
        if isinstance(piece, list):
            return structs.replace(self, from_seq=piece[-1].seq, from_ts=None)
        if isinstance(piece, ScanTombstone):
            return structs.replace(self, from_seq=piece.resume_seq, epoch=piece.epoch, from_ts=None)
        return structs.replace(self, from_seq=piece.next_from_seq, epoch=piece.epoch, from_ts=None)


def opened(
    http: AsyncTransport, topic: str, wanted: ScanFields, accept: str
) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
    """Open a scan, and return its bytes."""
    body = {"include_tags": True, **fields_of(**structs.asdict(wanted))}
    return http.stream(topic_path(topic, "/scan"), method="POST", body=body, accept=accept, silence_s=SILENCE_S)


async def pieces(http: AsyncTransport, topic: str, wanted: ScanFields) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of one attempt up to the `ScanEnd`. Raise `Unreachable` if the answer was cut off."""
    async with opened(http, topic, wanted, NDJSON) as chunks:
        parser = ScanParser()
        async for chunk in chunks:
            for piece in parser.feed(chunk):
                if isinstance(piece, list):
                    for record in piece:
                        record.topic = topic
                yield piece
                if isinstance(piece, ScanEnd):
                    return
    raise Unreachable("the scan was cut off", code="stream_ended")


async def scan(http: AsyncTransport, topic: str, wanted: ScanFields) -> AsyncIterator[Record | Gap]:
    """See `AsyncTopics.scan`."""
    backoff = Backoff()
    while True:
        try:
            async with aclosing(pieces(http, topic, wanted)) as found:
                async for piece in found:
                    backoff.reset()
                    if isinstance(piece, list):
                        for record in piece:
                            yield record
                    elif isinstance(piece, ScanTombstone):
                        yield piece.gap(topic)
                    else:
                        return
                    wanted = wanted.after(piece)
        except TopicsError as error:
            if not error.retryable or backoff.attempts >= http.most_retries():
                raise
            wait_s = backoff.next_s(error)
            if http.retries is None and backoff.passed_s + wait_s > http.retry_for_s:
                raise
            await tools.sleep(wait_s)
