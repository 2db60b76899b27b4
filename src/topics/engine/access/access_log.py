"""The log entry of keys and revocations, and how it changes the state."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from topics.engine.state.topics import State
from topics.model.access import Revocation, StoredKey
from topics.storage.log import entry as entries


@entries.known
class AccessChanged(Struct, array_like=True):
    """A key, or a revocation of tokens, is created or changed, or deleted if `row` is None."""

    kind: ClassVar[int] = 56
    topic_id: int  # 0: of no topic
    name: str
    row: StoredKey | Revocation | None
    at_ms: int


def change(state: State, entry: AccessChanged) -> None:
    """Apply the entry, and forget the revocations whose tokens have expired by then."""
    state.access.put(entry.name, entry.row)
    for row in list(state.access.by_name.values()):
        if isinstance(row, Revocation) and row.until_ms < entry.at_ms:
            state.access.put(row.name, None)
