"""Append the rows of a result to a topic, in one task, in requests that are the same in every repetition."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import xxhash
from msgspec import Raw, Struct

from topics.client import Client
from topics.client.request import Written
from topics.errors import TopicsError
from topics.model import surrogates
from topics.spark.pipelines.run.delivery import metas
from topics.spark.sink.chunks import Chunk, framed
from topics.spark.sink.send import TOO_LARGE
from topics.spark.sink.write_options import DEFAULT_WINDOW_MS

MAX_RECORDS = 1000  # in one request


class PartStamp(Struct, frozen=True, kw_only=True):
    """The run that wrote a record, stored under a key of its meta."""

    name: str
    plan: str
    part: int


class WriteCounts(Struct, kw_only=True):
    """The number of records that a task wrote; `repeated` of them were in the topic already."""

    records: int = 0
    repeated: int = 0


def chunk(topic: str, run: str, part: int, records: list[bytes]) -> Chunk:
    """Return a request. Its key contains a digest, so that a repetition with other records is written, not dropped."""
    return Chunk(topic, f"{run}/{part}/{xxhash.xxh3_64_hexdigest(framed(records))}", records)


def put(client: Client, chunk: Chunk) -> Iterator[Written]:
    """Append the chunk. Yield the answer, or those of its halves if the server has a lower limit."""
    records = [Raw(record) for record in chunk.records]
    config = {"idempotency_window_ms": DEFAULT_WINDOW_MS}
    try:
        yield client.append(chunk.topic, records, idempotency_key=chunk.key, create=True, config=config)
    except TopicsError as error:
        if error.code not in TOO_LARGE or len(records) == 1:
            raise
        for half in chunk.halves():
            yield from put(client, half)


def append(client: Client, chunk: Chunk, counts: WriteCounts) -> list[Written]:
    """Append the chunk, and add its records to the counts. Return the answers."""
    answers = list(put(client, chunk))
    for answer in answers:
        counts.records += answer.count
        counts.repeated += answer.count if answer.deduped else 0
    return answers


def parts_present(client: Client, topic: str, from_seq: int, *, key: str, name: str, plan: str) -> set[int]:
    """Return the parts of a plan that an interrupted run has written to the topic after `from_seq`."""
    found = _stamps(client, topic, from_seq, key=key)
    return {stamp.part for stamp in found if (stamp.name, stamp.plan) == (name, plan)}


def holds(client: Client, topic: str, *, key: str, name: str) -> bool:
    """Return whether the topic holds a record that was written under this name."""
    return any(stamp.name == name for stamp in _stamps(client, topic, 0, key=key))


def _stamps(client: Client, topic: str, from_seq: int, *, key: str) -> Iterator[PartStamp]:
    """Yield the stamps of the records after `from_seq`; nothing if the topic does not exist."""
    return (stamp for meta in metas(client, topic, from_seq=from_seq) if (stamp := _stamp(meta, key)) is not None)


def _stamp(meta: bytes, key: str) -> PartStamp | None:
    if key.encode() not in meta:
        return None
    try:
        found = surrogates.members(meta).get(key)
        return None if found is None else msgspec.json.decode(found, type=PartStamp)
    except msgspec.MsgspecError:
        return None
