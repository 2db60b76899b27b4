"""The seqs of the records of one batch."""

from __future__ import annotations

from collections.abc import Sequence

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
