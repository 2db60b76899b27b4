"""Rows that are stored whole under a name: schedules and keys. A change replaces a row, so a thread may read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from topics.engine.state.name_index import NameIndex
from topics.model.access import Revocation, StoredKey
from topics.model.schedule import Schedule
from topics.storage.snapshot import encode_array

Row = TypeVar("Row", bound=Schedule | StoredKey | Revocation)


class NamedRows(Generic[Row]):
    """The rows of one kind, which is `type`, by name."""

    def __init__(self, type: Any) -> None:
        self.by_name: dict[str, Row] = {}
        self.names = NameIndex()
        self.changed: list[Callable[[str, Row | None], None]] = []  # called with every row, or None if it was deleted
        self._decode = msgspec.msgpack.Decoder(list[type]).decode

    def put(self, name: str, row: Row | None) -> None:
        """Create or replace a row, or delete it if `row` is None."""
        if row is None and self.by_name.pop(name, None) is not None:
            self.names.remove(name)
        elif row is not None:
            if name not in self.by_name:
                self.names.add(name)
            self.by_name[name] = row
        for listener in self.changed:
            listener(name, row)

    def save(self) -> Callable[[], Iterator[bytes]] | None:
        """Return what encodes all rows as they are now, on any thread; None if there are none."""
        rows = tuple(self.by_name.values())
        return (lambda: encode_array(iter(rows), len(rows))) if rows else None

    def load(self, raw: msgspec.Raw) -> None:
        self.by_name = {row.name: row for row in self._decode(raw)}
        self.names.rebuild(self.by_name)
