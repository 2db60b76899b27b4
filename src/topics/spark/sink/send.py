"""Send chunks of records to a server: in halves if it has a lower limit, and again while a topic is full.

Imports no Spark: pipelines send records from one process as well.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import Raw, Struct

from topics.client import Client
from topics.client.request import Written
from topics.errors import Code, TopicsError
from topics.spark.sink.chunks import Chunk
from topics.spark.sink.write_options import WriteOptions

FULL_PAUSE_S = 0.5
TOO_LARGE = (Code.BATCH_TOO_LARGE, Code.PAYLOAD_TOO_LARGE)


class Sent(Struct, kw_only=True):
    """The number of records that were sent; `repeated` of them were in the topic already."""

    records: int = 0
    repeated: int = 0

    def add(self, more: Sent) -> None:
        self.records += more.records
        self.repeated += more.repeated


def send(client: Client, options: WriteOptions, chunks: Iterable[Chunk], done: Sent) -> list[Written]:
    """Send the chunks, add their records to `done`, and return the answers of the server."""
    return [answer for chunk in chunks for answer in _send_chunk(client, options, chunk, done)]


def _send_chunk(client: Client, options: WriteOptions, chunk: Chunk, done: Sent) -> list[Written]:
    """Send one chunk; if the server has a lower limit, send it in halves. While the topic is full, retry."""
    deadline = time.monotonic() + options.connection.timeout_ms / 1000
    while True:
        try:
            answer = client.append(
                chunk.topic,
                [Raw(record) for record in chunk.records],
                idempotency_key=chunk.key,
                create=options.create,
                config=options.creation,
            )
        except TopicsError as error:
            if error.code in TOO_LARGE and len(chunk.records) > 1:
                return send(client, options, chunk.halves(), done)
            if error.code is not Code.TOPIC_FULL or time.monotonic() > deadline:
                raise
            time.sleep(FULL_PAUSE_S)  # the topic rejects appends while it is full; a delete may make room
            continue
        done.records += answer.count
        done.repeated += answer.count if answer.deduped else 0
        return [answer]
