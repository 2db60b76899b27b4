"""Keys and revocations of tokens as the log and snapshots have them. What they allow is decided by the server.

A change is synced, and uploaded if there is a replica, like that of a schedule.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from topics.engine.state.topics import State
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import busy
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


class Access:
    """The verbs of keys: find a row, store or delete it."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._pending: set[str] = set()  # names whose change has not taken effect

    def find(self, name: str) -> StoredKey | Revocation | None:
        """Return the row once its last change has taken effect."""
        if name in self._pending:
            self._staging.commits.sync()
        if name in self._pending:
            raise busy(f"a change of {name}")
        return self._staging.state.access.by_name.get(name)

    def put(self, name: str, row: StoredKey | Revocation | None) -> Ticket:
        """Store a row, or delete it if `row` is None. Ends with the row."""
        entry = AccessChanged(0, name, row, self._staging.clock.now_ms())
        self._pending.add(name)

        def take_effect(_: Ticket) -> StoredKey | Revocation | None:
            self._pending.discard(name)
            change(self._staging.state, entry)
            return row

        return self._staging.stage(None, [entry], take_effect, undo=lambda: self._pending.discard(name))
