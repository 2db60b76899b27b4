"""Idempotency windows: the keys that each topic remembers, for how long, and in how much memory.

A write that carries a key forgets a few expired keys, and `sweep` forgets the rest, so that no single step has many to
forget. A key that is past its window and still stored has no effect: `find` compares the times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from sys import getsizeof
from typing import TYPE_CHECKING

from topics.engine.state.topic import EMPTY, Remembered, Topic

if TYPE_CHECKING:
    from topics.engine.state.topics import State

ENTRY_BYTES = 256  # of a remembered key beside its text; measured with 1,000 to 240,000 keys
VOIDING = ("restart", "corrupt")  # losses of stored records: a retry must store them again
FORGOTTEN_A_WRITE = 16  # expired keys that one write removes at most


def size_bytes(key: str) -> int:
    """Return the memory that remembering `key` takes."""
    return getsizeof(key) + ENTRY_BYTES


def find(topic: Topic, key: str, now_ms: int) -> Remembered | None:
    """Return the write that had this key within the topic's window; None if a crash or damage took its records."""
    write = topic.keys.get(key)
    if write is None or now_ms - write.at_ms > topic.config.idempotency_window_ms:
        return None
    return None if is_void(topic, write.last) else write


def is_void(topic: Topic, seq: int) -> bool:
    """Return whether a crash or damage took the record, so that its keys do not count."""
    lost = topic.losses.covering(seq)
    return lost is not None and lost[2] in VOIDING


def remember(state: State, topic: Topic, key: str, write: Remembered) -> None:
    """Keep a key for the topic's window. The oldest keys make room if there are more than `State.max_keys`."""
    if not topic.config.idempotency_window_ms:
        return
    keys = topic.keys = topic.keys or OrderedDict()
    if keys.pop(key, None) is None:  # a key used again after its window moves to the end
        _add_bytes(topic, size_bytes(key))
    keys[key] = write
    state.keyed[topic] = None
    forget_before(topic, write.at_ms - topic.config.idempotency_window_ms, most=FORGOTTEN_A_WRITE)
    while len(keys) > state.max_keys:
        _forget_oldest(topic)


def forget_before(topic: Topic, ms: int, *, most: int) -> int:
    """Forget keys of writes before `ms`, at most `most`; return how many these were."""
    keys, forgotten = topic.keys, 0
    while keys and forgotten < most and keys[next(iter(keys))].at_ms < ms:
        _forget_oldest(topic)
        forgotten += 1
    return forgotten


def forget_all(state: State, topic: Topic) -> None:
    """Forget every key of a topic that is dropped, or has no window."""
    topic.keys = EMPTY
    _add_bytes(topic, -topic.key_bytes)
    state.keyed.pop(topic, None)


def restore(state: State, topic: Topic, rows: Collection[tuple[str, int, int, int]]) -> None:
    """Restore the keys of a snapshot: rows of key, first seq, last seq and time, oldest first."""
    topic.keys = OrderedDict((key, Remembered(first, last, at_ms)) for key, first, last, at_ms in rows)
    _add_bytes(topic, sum(map(size_bytes, topic.keys)))
    state.keyed[topic] = None


def sweep(state: State, now_ms: int, *, topics: int, keys: int) -> None:
    """Forget expired keys of a limited number of topics. The next call continues with the others."""
    for _ in range(min(topics, len(state.keyed))):
        topic = next(iter(state.keyed))
        del state.keyed[topic]
        keys -= forget_before(topic, now_ms - topic.config.idempotency_window_ms, most=keys)
        if topic.keys:
            state.keyed[topic] = None
        if keys <= 0:
            return


def _forget_oldest(topic: Topic) -> None:
    key, _ = topic.keys.popitem(last=False)
    _add_bytes(topic, -size_bytes(key))


def _add_bytes(topic: Topic, delta_bytes: int) -> None:
    topic.key_bytes += delta_bytes
    topic.totals.key_bytes += delta_bytes
