"""The note of an erasure: the copies without a tag that it has found, so that the run after a kill can finish.

It is saved before the first delete, because then the originals that lead to these copies may be gone. It has seqs, but
nothing of the content to erase, and is among the positions of pipelines on the server, in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from msgspec import Struct, field

from topics.client import Client
from topics.errors import Code, TopicsError
from topics.spark.pipelines.erase.router_copies import Id
from topics.spark.pipelines.run.positions import Positions

IDS_A_PART = 5000  # because a record has a size limit

Ids = Mapping[str, Set[Id]]


class Note(Struct, omit_defaults=True):
    """Copies by their topic, and by router the originals whose copies were found; see `router_copies`."""

    ids: dict[str, list[Id]] = field(default_factory=dict)
    matched: dict[str, list[Id]] = field(default_factory=dict)


class Notes:
    """Keeps the note of one erasure. `erasure` is its name."""

    def __init__(self, client: Client, erasure: str, *, run: str, warn: Callable[[str], None], topic: str) -> None:
        self._positions = Positions(client, f"erase:{erasure}:", run=run, topic=topic)
        self._warn = warn
        self._is_saved = False

    def load(self) -> list[Note]:
        """Return the parts of the note of a killed run. There are none if the key may not read them."""
        try:
            parts = self._positions.load(Note)
        except TopicsError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            return []
        self._is_saved = bool(parts)
        return list(parts.values())

    def save(self, ids: Ids, matched: Ids) -> None:
        parts = [
            Note(**{name: {of: given[at : at + IDS_A_PART]}})
            for name, found in (("ids", ids), ("matched", matched))
            for of, given in ((of, sorted(given)) for of, given in found.items())
            for at in range(0, len(given), IDS_A_PART)
        ]
        try:
            for number, part in enumerate(parts):
                self._positions.save({str(number): part})
                self._is_saved = True
        except TopicsError as error:
            if error.code is not Code.FORBIDDEN:
                raise
            self._warn(f"the progress cannot be saved, so a run after a kill may miss copies without a tag: {error}")

    def drop(self) -> None:
        """Delete the note: the erasure has finished."""
        if self._is_saved:
            self._positions.forget()
