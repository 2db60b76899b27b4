"""The part of a queue in a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from topics.engine.state.jobs.keys import SavedLine
from topics.engine.state.jobs.unique import SavedUnique
from topics.model.queue import Reason


class SavedJob(Struct, array_like=True):
    seq: int
    priority: int | None
    deliveries: int
    due_ms: int
    lease: int
    node: str
    deadline_ms: int
    reasons: Sequence[Reason] = ()  # not in snapshots of earlier versions


class SavedLeases(Struct, array_like=True):
    """The state of a queue in a snapshot. `by_priority` has packed u64 seqs, `later` packed pairs of u64."""

    dead_lettered: int = 0
    last_lease: int = 0
    by_priority: list[bytes] = []
    later: bytes = b""
    out: list[SavedJob] = []
    keys: list[SavedLine] = []  # not in snapshots of earlier versions, and neither is this
    unique: list[SavedUnique] = []
    cancelled: dict[int, str] = {}
