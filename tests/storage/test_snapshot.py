"""Snapshots as bytes: keys in lists are written as keys in rows are, and never as one large part."""

from typing import Any

import msgspec
import pytest
from msgspec import Struct

from topics.model.topic import TopicConfig
from topics.storage import snapshot as snap
from topics.storage.worker import INLINE


class Write(Struct):
    first: int
    last: int
    at_ms: int


def topic_with(topic_id: int, keys: tuple[tuple[str, int, int, int], ...]) -> snap.TopicSnapshot:
    numbers: dict[str, Any] = dict.fromkeys(
        ("epoch", "head", "earliest", "evict_floor", "lost_ts", "last_ts", "ceiling", "count", "bytes"), 7
    )
    return snap.TopicSnapshot(
        topic_id=topic_id, name=f"t{topic_id}", config=TopicConfig(), last_write_ts=None, losses=((1, 2, "cap"),),
        keys=keys, segments=(), extra={"queue": msgspec.Raw(b"\x01")}, **numbers,
    )  # fmt: skip


def snapshot_of(topics: list[snap.TopicSnapshot]) -> snap.Snapshot:
    return snap.Snapshot(wal_number=3, boot_id="b", clean=True, next_topic_id=9, last_epoch=4, topics=topics)


@pytest.mark.parametrize("count", [0, 1, 15, 16, snap.KEYS_A_PART, snap.KEYS_A_PART + 1, 70_000])
def test_keys_in_lists_are_written_as_keys_in_rows(count: int):
    rows = tuple((f"key-{n}", n, n + 2, 1000 + n) for n in range(count))
    lists = snap.KeyLists([row[0] for row in rows], [Write(*row[1:]) for row in rows])
    others = [topic_with(1, (("a", 1, 1, 1),)), topic_with(3, ())]

    expected = snap.encode(snapshot_of([others[0], topic_with(2, rows), others[1]]))
    pairs = iter([(others[0], None), (topic_with(2, ()), lists), (others[1], None)])
    parts = list(snap.encode_parts(snapshot_of([]), pairs, 3, INLINE))

    assert b"".join(parts) == expected
    assert snap.decode(expected, path="s").topics[1].keys == rows
    assert max(map(len, parts)) < 300_000
