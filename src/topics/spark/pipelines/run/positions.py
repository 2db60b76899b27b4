"""Positions of pipelines, kept as records in a topic of the server that they write to.

A server restored from a backup has the positions that belong to its data. Each position has a name, which is its tag;
the last record with that tag is valid. A position holds what is done and what is planned. A killed run leaves its plan;
the next run repeats exactly that plan under the same idempotency keys, so a write by a leftover task is the same write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec
import xxhash
from msgspec import Raw, Struct

from topics.client import Client
from topics.client.request import Record
from topics.errors import Code
from topics.spark.failures import Failed, allowed
from topics.spark.topic_names import check_name

TOPIC = "sys:positions"
CONFIG = {"durability": "fsync"}
MAX_NAME_BYTES = 200  # tags may have 256
DELETE_REPLACED_EVERY = 500

Value = TypeVar("Value", bound=Struct)


class _PositionRecord(Struct):
    name: str
    run: str
    value: Raw


class Positions:
    """The positions of one run that share a name prefix. A concurrent run of the same pipeline is detected."""

    def __init__(self, client: Client, prefix: str, *, run: str, topic: str = TOPIC) -> None:
        check_name(topic, "--positions")
        self._client = client
        self._prefix = prefix
        self._run = run
        self.topic = topic
        self._at = 0  # last seq read from the topic
        self._moved: set[str] = set()
        self._last: dict[str, int] = {}  # seq of the last record of each name
        self._count = 0

    def load(self, kind: type[Value]) -> dict[str, Value]:
        """Return every position by its name without the prefix. Call it once, first."""
        found: dict[str, Value] = {}
        for seq, entry in self._entries(0):
            found[entry.name] = msgspec.json.decode(entry.value, type=kind)
            self._last[entry.name] = seq
        return {name.removeprefix(self._prefix): value for name, value in found.items()}

    def check_alone(self) -> None:
        """Raise `Failed` if another run has moved a position that this run moves."""
        for _, entry in self._entries(self._at):
            if entry.run != self._run and entry.name in self._moved:
                raise Failed(
                    f"another run ({entry.run}) is moving {entry.name} at the same time",
                    next="stop one of the two runs",
                )

    def save(self, values: Mapping[str, Struct]) -> None:
        """Append the positions, all or none."""
        if not values:
            return
        records = []
        names = [self._prefix + name for name in values]
        self._moved.update(names)
        for name, value in zip(names, values.values(), strict=True):
            entry = _PositionRecord(name, self._run, Raw(msgspec.json.encode(value)))
            records.append({"data": Raw(msgspec.json.encode(entry)), "tag": tag_of(name)})
        self._count += 1
        for start in range(0, len(records), 5000):
            key = f"{self._run}/{xxhash.xxh3_64_hexdigest(self._prefix.encode())}/{self._count}/{start}"
            part = records[start : start + 5000]
            done = self._client.append(self.topic, part, idempotency_key=key, create=True, config=CONFIG)
            for index, name in enumerate(names[start : start + 5000]):
                self._last[name] = done.first_seq + index
        if self._count % DELETE_REPLACED_EVERY == 0:
            with allowed(Code.FORBIDDEN):  # a key without `admin` leaves the replaced records: harmless
                for name, seq in self._last.items():
                    self._client.delete(self.topic, match=tag_of(name), before_seq=seq)

    def _entries(self, from_seq: int) -> list[tuple[int, _PositionRecord]]:
        found = []
        match = ["tag", "Glob", tag_of(self._prefix) + "*"]
        with allowed(Code.TOPIC_NOT_FOUND):
            for item in self._client.read(self.topic, from_seq=from_seq, filter=match):
                if isinstance(item, Record):
                    self._at = item.seq
                    entry = msgspec.json.decode(item.data, type=_PositionRecord)
                    if entry.name.startswith(self._prefix):
                        found.append((item.seq, entry))
        return found


def tag_of(name: str) -> str:
    """Return the name, shortened with a hash if it is too long for a tag."""
    if len(name.encode()) <= MAX_NAME_BYTES:
        return name
    return f"{name[: MAX_NAME_BYTES // 2]}~{xxhash.xxh3_128_hexdigest(name.encode())}"
