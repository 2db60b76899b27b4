"""Where a reader keeps its position: any object with `load` and `save`."""

from __future__ import annotations

import os
from collections.abc import Awaitable
from pathlib import Path
from typing import Protocol

import msgspec

from topics.client.items import Position


class Cursor(Protocol):
    """Keeps one position. The methods may be coroutines where the reader is one."""

    def load(self) -> Position | Awaitable[Position | None] | None:
        """Return the position that was saved last, or None."""

    def save(self, position: Position) -> Awaitable[None] | None:
        """Keep a position."""


class MemoryCursor:
    """Keeps a position for as long as the program runs."""

    def __init__(self, position: Position | None = None) -> None:
        self.position = position

    def load(self) -> Position | None:
        return self.position

    def save(self, position: Position) -> None:
        self.position = position


class FileCursor:
    """Keeps a position in a file. A crash leaves the old position or the new one, never half of one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def load(self) -> Position | None:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Position)
        except FileNotFoundError:
            return None

    def save(self, position: Position) -> None:
        fresh = self.path.with_name(self.path.name + ".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.encode(position))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
