"""The seqs of the records of one batch."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from topics.plurals import counted

Seqs = Sequence[int | Exception]
"""One seq for each record, or the reason why the record was not written."""


def seq_at(seqs: Seqs, index: int) -> int:
    """Return the seq of one record. Raise the reason why it was not written."""
    found = seqs[index]
    if isinstance(found, Exception):
        raise found
    return found


def error_at(seqs: Seqs, index: int) -> Exception | None:
    """Return the reason why a record was not written, or None."""
    found = seqs[index]
    return found if isinstance(found, Exception) else None


class Failures:
    """Records of a writer that were not written, until their failure is raised."""

    def __init__(self) -> None:
        self._first: Exception | None = None
        self._records = 0
        self._lock = Lock()

    def add(self, seqs: Seqs) -> None:
        """Count the records of a batch that failed."""
        failed = [found for found in seqs if isinstance(found, Exception)]
        if failed:
            with self._lock:
                self._first = self._first or failed[0]
                self._records += len(failed)

    def raise_first(self, topic: str) -> None:
        """Raise the first failure, once. A note says how many records of the topic were not written."""
        with self._lock:
            first, records, self._first, self._records = self._first, self._records, None, 0
        if first is not None:
            first.add_note(f"{counted(records, 'record')} of {topic} failed")
            raise first
