"""Keep which rows each request of a micro-batch had, for the case that records are deleted before it is repeated.

A key covers the rows of its request, so a deleted record would change it, and the other rows would be written again.
The first attempt keeps key and rows of its requests in a file for each grid cell, in the checkpoint of the query:

    <checkpoint>/topics/<batch>/<cell>             the requests of the first part of the cell
    <checkpoint>/topics/<batch>/<cell>.<attempt>   the task that repeats them in a later attempt

A later attempt sends the rows that are left under the keys of the first one. If a cell has several parts, as after a
shuffle or in a union, only one is kept. Others have rows that are not in the file, and get keys of their own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash
from msgspec import Struct

from topics.spark.sink.chunks import Chunk


class _Kept(Struct, array_like=True):
    attempt: str
    task: str
    requests: list[tuple[str, list[int]]]  # key, and a digest of each row


class FirstRequests(NamedTuple):
    """The files of one micro-batch. A missing or damaged file protects nothing, and changes nothing."""

    folder: Path
    attempt: str  # of the batch: the run of the query
    task: str  # the same if a task is tried again

    def repeated(self, cell: str, chunks: list[Chunk], rows: Sequence[int]) -> list[Chunk]:
        """Return the requests to send for the chunks of a cell. `rows` has a digest of each row, in their order."""
        rest, claim = iter(rows), f"{cell}.{self.attempt}"
        kept = [(chunk.key, list(islice(rest, len(chunk.records)))) for chunk in chunks]
        try:
            if self.folder.parent.parent.is_dir():  # else this machine does not have the checkpoint
                self.folder.mkdir(parents=True, exist_ok=True)
            if self._created(cell, msgspec.json.encode(_Kept(self.attempt, self.task, kept))):
                return chunks
            first = msgspec.json.decode((self.folder / cell).read_bytes(), type=_Kept)
            owner = first.task
            if first.attempt != self.attempt:
                self._created(claim, self.task.encode())
                owner = (self.folder / claim).read_text()
        except (OSError, msgspec.DecodeError):
            return chunks
        return chunks if owner != self.task else _under_keys(first, chunks, rows) or chunks

    def _created(self, name: str, content: bytes) -> bool:
        """Create a file. Return False if it exists."""
        try:
            with open(self.folder / name, "xb") as file:
                file.write(content)
        except FileExistsError:
            return False
        return True


def _under_keys(first: _Kept, chunks: list[Chunk], rows: Sequence[int]) -> list[Chunk] | None:
    """Return the rows under the keys of the first attempt, or None if some were not in its requests."""
    records = [record for chunk in chunks for record in chunk.records]
    found, at = [], 0
    for key, wanted in first.requests:
        begin = at
        for row in wanted:
            at += at < len(rows) and rows[at] == row
        if at > begin:
            left = str(rows[begin:at]).encode()
            # Halves of a request that the server finds too large have keys of their own rows.
            cut_key = None if at - begin == len(wanted) else f"{key}/{xxhash.xxh3_64_hexdigest(left)}"
            found.append(Chunk(chunks[0].topic, key, records[begin:at], cut_key))
    return found if at == len(rows) else None
