"""What an erasure notes while it is under way, so that the next run can end it and tell of all of it.

It lies in the lake; without one in the topic of the server where pipelines keep how far they have come.

Seqs and counts only: nothing of what is to be erased. What is about to be deleted is noted before, with its count: by
what is left of it a later run sees how much of it a killed one has deleted.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
from msgspec import Struct, field

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.spark.pipelines.erase.router_copies import Id
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.positions import Positions

IDS_A_PART = 5000  # of a note in a topic, whose records have a limit
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


class Notes(Protocol):
    """Where the note of one erasure is kept."""

    def load(self) -> Note: ...

    def save(self, note: Note) -> None: ...

    def drop(self) -> None:
        """It has ended."""

    def tidy(self) -> None:
        """Removes what runs left that were killed while they wrote."""


def name_of(erasure: str) -> str:
    """Named after what it erases without saying it."""
    return hashlib.sha256(erasure.encode()).hexdigest()[:16]


class FileNotes:
    """A file in the lake."""

    def __init__(self, folder: str, erasure: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, f"{name_of(erasure)}.json")

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
        if not os.path.isdir(self._folder):
            return
        for entry in os.scandir(self._folder):
            ours = entry.path.startswith(self._path)
            if entry.name.endswith(".tmp") and (ours or time.time() - entry.stat().st_mtime > STALE_S):
                os.unlink(entry.path)


class TopicNotes:
    """Records of a server, in parts; only those that have changed are written again.

    A key that may not write there costs a warning: such a run can be cut off as well, but the next one knows nothing
    of it.
    """

    def __init__(
        self, client: Client, erasure: str, *, run: str, warn: Callable[[str], None], topic: str = positions.TOPIC
    ) -> None:
        self._positions = Positions(client, f"erase:{name_of(erasure)}:", run=run, topic=topic)
        self._warn = warn
        self._saved: dict[str, bytes] = {}
        self._refused = False

    def load(self) -> Note:
        note = Note()
        try:
            parts = self._positions.load(Note)
        except TopicsError as error:
            self._refuse(error)
            return note
        for name, part in parts.items():
            self._saved[name] = msgspec.json.encode(part)
            for topic, ids in part.ids.items():
                note.ids.setdefault(topic, []).extend(ids)
            for router, ids in part.settled.items():
                note.settled.setdefault(router, []).extend(ids)
            note.gone |= part.gone
            note.going |= part.going
        return note

    def save(self, note: Note) -> None:
        """What was found before what is going: a delete is noted only where all that it needs is."""
        parts = {f"found:{at}": part for at, part in enumerate(_found_parts(note))}
        parts["going"] = Note(gone=note.gone, going=note.going)
        for name in sorted({*self._saved, *parts}):
            self._save(name, parts.get(name, Note()))

    def _save(self, name: str, part: Note) -> None:
        encoded = msgspec.json.encode(part)
        if self._refused or self._saved.get(name, EMPTY) == encoded:
            return
        try:
            self._positions.save({name: part})
            self._saved[name] = encoded
        except TopicsError as error:
            self._refuse(error)

    def _refuse(self, error: TopicsError) -> None:
        if error.code is not Code.FORBIDDEN:
            raise error
        self._refused = True
        self._warn(f"what goes cannot be noted, so that a run after one that is cut off knows nothing of it: {error}")

    def drop(self) -> None:
        if self._saved:
            self.save(Note())  # for keys that may write here and not delete
            self._positions.forget()
            self._saved = {}

    def tidy(self) -> None: ...


EMPTY = msgspec.json.encode(Note())


def _found_parts(note: Note) -> Iterator[Note]:
    for topic, ids in note.ids.items():
        for at in range(0, len(ids), IDS_A_PART):
            yield Note(ids={topic: ids[at : at + IDS_A_PART]})
    for router, ids in note.settled.items():
        for at in range(0, len(ids), IDS_A_PART):
            yield Note(settled={router: ids[at : at + IDS_A_PART]})
