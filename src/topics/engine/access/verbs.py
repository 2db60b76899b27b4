"""The verbs of keys: store a row, delete a row. Each is synced, and uploaded if there is a replica, like a schedule."""

from __future__ import annotations

from topics.engine.access import access_log
from topics.engine.access.access_log import AccessChanged
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.engine.write.uploads import busy
from topics.model.access import Revocation, StoredKey


class Access:
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
            access_log.change(self._staging.state, entry)
            return row

        return self._staging.stage(None, [entry], take_effect, undo=lambda: self._pending.discard(name))
