"""A pair of servers: runs of a mirror between them, and their records."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any, NamedTuple

import msgspec

from topics.client import Client
from topics.client.request import Record
from topics.spark.pipelines.mirror import mirror
from topics.spark.pipelines.mirror_task import KEY
from topics.spark.pipelines.run.report import RunReport


class Side(NamedTuple):
    url: str
    client: Client


class Pair(NamedTuple):
    one: Side
    other: Side


def content(client: Client, topic: str) -> Counter[str]:
    """Return the records of a topic, without the stamps of a mirror and the fields that a server assigns."""
    found: Counter[str] = Counter()
    for item in client.read(topic, include_tags=True):
        assert isinstance(item, Record)
        meta = msgspec.json.decode(item.meta) if item.meta else {}
        meta.pop(KEY, None)
        found[repr((item.node, item.tag, meta, bytes(item.data)))] += 1
    return found


def run(spark: Any, pair: Pair, topic: str, **options: Any) -> RunReport:
    return mirror(source=pair.one.url, target=pair.other.url, topics=[topic], spark=spark, **options)


def some(count: int, seed: int, word: str) -> list[dict[str, Any]]:
    """Records of all kinds: with and without node, tag and meta, and some of them equal."""
    chance = random.Random(seed)
    found = []
    for at in range(count):
        record: dict[str, Any] = {"data": {word: at % 40, "text": 'ü "quoted" \\ '}}
        if chance.random() < 0.5:
            record["node"] = chance.choice(["till-1", "till-2"])
        if chance.random() < 0.5:
            record["tag"] = chance.choice(["a:1", "b\u00e4"])
        if chance.random() < 0.5:
            record["meta"] = {"trace": at, "deep": {"x": [1, None]}}
        found.append(record)
    return found


def die(*arguments: object, **options: object) -> None:
    raise MemoryError


def count_of(client: Client, topic: str) -> int:
    return next((row.count for row in client.topics(topic) if row.topic == topic), 0)
