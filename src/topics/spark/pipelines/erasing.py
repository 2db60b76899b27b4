"""What an erasure notes in the lake while it is under way, so that the next run can end it and tell of all of it.

Seqs and counts only: nothing of what is to be erased. What is about to be deleted is noted before, with its count: by
what is left of it a later run sees how much of it a killed one has deleted.
"""

from __future__ import annotations

import hashlib
import os
import time

import msgspec
from msgspec import Struct, field

from topics.spark.pipelines.copies import Id

STALE_S = 3600.0  # temporary files of other erasures that are older belong to nobody


class Going(Struct, omit_defaults=True):
    """What is about to be deleted from a place, of this life and up to this seq."""

    epoch: int = 0
    head_seq: int = 0
    tagged: int = 0
    copies: int = 0


class Tally(Struct, omit_defaults=True):
    """What has been erased of a topic."""

    tagged: int = 0
    copies: int = 0
    lake: int = 0

    @property
    def records(self) -> int:
        return self.tagged + self.copies + self.lake


class Note(Struct, omit_defaults=True):
    """By topic; `settled` by router. See `copies` for that."""

    ids: dict[str, list[Id]] = field(default_factory=dict)
    settled: dict[str, list[Id]] = field(default_factory=dict)
    gone: dict[str, Tally] = field(default_factory=dict)
    going: dict[str, Going] = field(default_factory=dict)
    going_from_lake: dict[str, Going] = field(default_factory=dict)

    def tally(self, topic: str) -> Tally:
        return self.gone.setdefault(topic, Tally())


class Notes:
    """The file of one erasure, named after what it erases without saying it."""

    def __init__(self, folder: str, erasure: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, f"{hashlib.sha256(erasure.encode()).hexdigest()[:16]}.json")

    def load(self) -> Note:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=Note)
        except FileNotFoundError:
            return Note()

    def save(self, note: Note) -> None:
        os.makedirs(self._folder, exist_ok=True)
        temporary = f"{self._path}.tmp"
        with open(temporary, "wb") as file:
            file.write(msgspec.json.encode(note))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)

    def drop(self) -> None:
        if os.path.exists(self._path):
            os.unlink(self._path)

    def tidy(self) -> None:
        """Removes what runs left that were killed while they wrote."""
        if not os.path.isdir(self._folder):
            return
        for entry in os.scandir(self._folder):
            ours = entry.path.startswith(self._path)
            if entry.name.endswith(".tmp") and (ours or time.time() - entry.stat().st_mtime > STALE_S):
                os.unlink(entry.path)
