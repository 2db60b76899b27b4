"""The notes of an erasure, so that the run after a kill can finish it and report all of it.

They are in a file of the lake; without a lake, in the server's topic for the positions of pipelines.

Notes contain seqs and counts, but nothing of the content to erase. A delete is noted before it starts, with its count:
the next run compares the count with the records that are left to find how many a killed run has deleted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
from msgspec import Struct, field

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.lake.storage import Storage
from topics.spark.pipelines.erase.router_copies import Id
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.positions import Positions

IDS_A_PART = 5000  # ids per record of a note in a topic, because a record has a size limit
STALE_S = 3600.0  # older temporary files of other erasures are left over from killed runs


class Going(Struct, omit_defaults=True):
    """A delete that is about to start: its epoch, last seq, and number of records."""

    epoch: int = 0
    head_seq: int = 0
    tagged: int = 0
    copies: int = 0


class Tally(Struct, omit_defaults=True):
    """The number of records erased from a topic."""

    tagged: int = 0
    copies: int = 0
    lake: int = 0

    @property
    def records(self) -> int:
        return self.tagged + self.copies + self.lake


class Note(Struct, omit_defaults=True):
    """The state of an erasure, by topic; `matched` is by router, see `router_copies`."""

    ids: dict[str, list[Id]] = field(default_factory=dict)
    matched: dict[str, list[Id]] = field(default_factory=dict, name="settled")
    erased: dict[str, Tally] = field(default_factory=dict, name="gone")
    going: dict[str, Going] = field(default_factory=dict)
    going_from_lake: dict[str, Going] = field(default_factory=dict)

    def tally(self, topic: str) -> Tally:
        return self.erased.setdefault(topic, Tally())


class FileNotes:
    """Keeps the note in a file of the lake."""

    def __init__(self, storage: Storage, folder: str, erasure: str) -> None:
        self._storage = storage
        self._folder = folder
        self._path = f"{folder}/{erasure}.json"

    def load(self) -> Note:
        text = self._storage.read(self._path)
        return Note() if text is None else msgspec.json.decode(text, type=Note)

    def save(self, note: Note) -> None:
        self._storage.write(self._path, msgspec.json.encode(note))

    def drop(self) -> None:
        """Delete the note: the erasure has finished. Remove temporary files of runs that were killed in `save`."""
        self._storage.remove(self._path)
        for one in self._storage.files_in(self._folder):
            is_own = one.path.startswith(self._path)
            if one.path.endswith(".tmp") and (is_own or time.time() - one.modified_ns / 1e9 > STALE_S):
                self._storage.remove(one.path)


class TopicNotes:
    """Keeps the note in records of the server, in parts. Only changed parts are written again.

    If the key may not write there, the run continues with a warning: after a kill the next run has no note.
    """

    def __init__(
        self, client: Client, erasure: str, *, run: str, warn: Callable[[str], None], topic: str = positions.TOPIC
    ) -> None:
        self._positions = Positions(client, f"erase:{erasure}:", run=run, topic=topic)
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
            for router, ids in part.matched.items():
                note.matched.setdefault(router, []).extend(ids)
            note.erased |= part.erased
            note.going |= part.going
        return note

    def save(self, note: Note) -> None:
        """Save the found copies before the deletes that need them: parts are written sorted by name."""
        found = [
            Note(**{name: {of: ids[at : at + IDS_A_PART]}})
            for name in ("ids", "matched")
            for of, ids in getattr(note, name).items()
            for at in range(0, len(ids), IDS_A_PART)
        ]
        parts = {f"found:{at}": part for at, part in enumerate(found)}
        parts["going"] = Note(erased=note.erased, going=note.going)
        for name in sorted({*self._saved, *parts}):
            part = parts.get(name, Note())
            encoded = msgspec.json.encode(part)
            if not self._refused and self._saved.get(name, EMPTY) != encoded:
                try:
                    self._positions.save({name: part})
                    self._saved[name] = encoded
                except TopicsError as error:
                    self._refuse(error)

    def _refuse(self, error: TopicsError) -> None:
        if error.code is not Code.FORBIDDEN:
            raise error
        self._refused = True
        self._warn(f"the progress cannot be saved, so a run after a kill cannot report what this one erased: {error}")

    def drop(self) -> None:
        """Delete the note: the erasure has finished."""
        if self._saved:
            self.save(Note())  # for a key that may write but not delete
            self._positions.forget()
            self._saved = {}


EMPTY = msgspec.json.encode(Note())
