"""Keep which rows each request of a micro-batch had, for the case that records are deleted before it is repeated.

A key covers the rows of its request, so a deleted record would change it, and the other rows would be written again.
So the checkpoint of the query keeps keys and rows of the requests of each grid cell:

    <checkpoint>/topics/<batch>/<cell>.0   the requests of the first task that had rows of the cell
    <checkpoint>/topics/<batch>/<cell>.1 … those that later attempts sent under these keys

In a later attempt, one task sends the rows that are left under the first keys: the first one of the same partition. All
others send their rows under keys of these rows.

Nothing may be lost: which of its requests a key has stored is not known. So a request goes under a key only if every
earlier request of this key had all of its rows. Else, as after another shuffle, it gets a key that nothing else uses.
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash
from msgspec import Struct

from topics.spark.sink.chunks import Chunk

Request = tuple[str, list[int]]  # key, and a digest of each row


class _Kept(Struct, array_like=True):
    attempt: str
    task: str
    requests: list[Request]


class FirstRequests(NamedTuple):
    """The files of one micro-batch. Missing files protect nothing, and change nothing."""

    folder: Path
    attempt: str  # of the batch: the run of the query
    task: str  # its stage and partition: the same if it is tried again

    def repeated(self, cell: str, chunks: list[Chunk], rows: Sequence[int]) -> list[Chunk]:
        """Return the requests to send for the chunks of a cell. `rows` has a digest of each row, in their order."""
        rest = iter(rows)
        own = [(chunk.key, list(islice(rest, len(chunk.records)))) for chunk in chunks]
        if not self.folder.parent.parent.is_dir():
            return chunks  # this machine does not have the checkpoint
        try:
            self._begin()
            kept = self._read(cell)
            if not kept:
                if self._add(cell, own) == 0:
                    return chunks
                kept = self._read(cell)
            sent, found = chunks, _under_keys(kept[0], chunks, rows) if self._owns(kept) else None
            if found is not None:
                requests = [request for _, request in found]
                self._add(cell, requests)
                kept = self._read(cell)  # what another task or a late one has added meanwhile counts as well
                if self._owns(kept):
                    sent, own = [chunk for chunk, _ in found], requests
        except (OSError, ValueError, msgspec.MsgspecError):
            kept = []
        if kept and all(_fits(request, kept) for request in own):
            return sent
        return [Chunk(chunk.topic, f"{chunk.key}/whole", chunk.records) for chunk in chunks]

    def _begin(self) -> None:
        """Make the folder, and remove those of batches that Spark does not repeat any more."""
        self.folder.parent.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            self.folder.mkdir()
            for other in self.folder.parent.iterdir():
                if other.name.isdigit() and int(other.name) < int(self.folder.name) - 1:
                    shutil.rmtree(other, ignore_errors=True)

    def _read(self, cell: str) -> list[_Kept]:
        found = list[_Kept]()
        with suppress(FileNotFoundError):
            for number in count():
                found.append(msgspec.json.decode((self.folder / f"{cell}.{number}").read_bytes(), type=_Kept))
        return found

    def _add(self, cell: str, requests: list[Request]) -> int:
        """Add a file to those of the cell, and return its number."""
        part = self.folder / f"{cell}.part-{uuid.uuid4().hex}"
        part.write_bytes(msgspec.json.encode(_Kept(self.attempt, self.task, requests)))
        try:
            for number in count():  # a link appears with its content, and only if there is none
                with suppress(FileExistsError):
                    (self.folder / f"{cell}.{number}").hardlink_to(part)
                    return number
        finally:
            part.unlink()
        raise AssertionError

    def _owns(self, kept: list[_Kept]) -> bool:
        """Return whether this task is the one of its attempt that may use the first keys."""
        of_attempt = [one.task for one in kept if one.attempt == self.attempt]
        if of_attempt:
            return of_attempt[0] == self.task
        return kept[0].task.rpartition(".")[2] == self.task.rpartition(".")[2]


def _under_keys(first: _Kept, chunks: list[Chunk], rows: Sequence[int]) -> list[tuple[Chunk, Request]] | None:
    """Return the rows under the keys of the first attempt, or None if some were not in its requests."""
    records = [record for chunk in chunks for record in chunk.records]
    found, at = [], 0
    for key, wanted in first.requests:
        begin = at
        for row in wanted:
            at += at < len(rows) and rows[at] == row
        if at > begin:
            left = list(rows[begin:at])
            # Halves of a request that the server finds too large have keys of their own rows.
            cut_key = None if len(left) == len(wanted) else f"{key}/{xxhash.xxh3_64_hexdigest(str(left).encode())}"
            found.append((Chunk(chunks[0].topic, key, records[begin:at], cut_key), (key, left)))
    return found if at == len(rows) else None


def _fits(request: Request, kept: Iterable[_Kept]) -> bool:
    """Return whether every request under the key had the rows of this one."""
    key, rows = request
    others = (Counter(other) for one in kept for used, other in one.requests if used == key)
    return all(not Counter(rows) - other for other in others)
