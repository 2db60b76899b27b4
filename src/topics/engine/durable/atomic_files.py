"""Files that are there in whole or not at all: written under a temporary name, synced, then renamed."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from itertools import chain

from topics.errors import Corrupt
from topics.storage.data_layout import TemporaryFile
from topics.storage.datadir import DataDir
from topics.storage.worker import Worker, rested

WRITE_BYTES = 256 << 10  # takes about 0.3 ms, for which the kernel may keep the core of the event loop


def write(datadir: DataDir, path: str, parts: Iterable[bytes | memoryview], worker: Worker) -> None:
    """Write a file that is durable under its name when this returns. Write none if there are no parts."""
    batches, at = rested(worker, _batches(rested(worker, parts))), 0
    first = next(batches, None)
    if first is None:
        return
    with TemporaryFile(datadir.fs, path) as file:
        for some in chain((first,), batches):
            file.pwritev(some, at)
            at += sum(map(len, some))
    datadir.publish(path)


def copy(datadir: DataDir, source: str, target: str, worker: Worker) -> None:
    """Copy a file. Raise `Corrupt` if it is shorter than its size says."""
    fs, folder = datadir.fs, posixpath.dirname(target)
    if not fs.exists(folder):
        fs.mkdir(folder)
        fs.sync_dir(posixpath.dirname(folder))
    origin = fs.open(source)
    try:
        with TemporaryFile(fs, target) as made:
            at, size = 0, origin.size()
            while at < size:
                piece = origin.pread(WRITE_BYTES, at)
                if not piece:
                    raise Corrupt(source, at, f"the file ends here instead of after {size} bytes")
                made.pwrite(piece, at)
                at += len(piece)
                worker.rest()
    finally:
        origin.close()
    datadir.publish(target)


def _batches(parts: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Yield the parts in lists of at least `WRITE_BYTES`, except for the last one. Cut parts that are larger."""
    some: list[bytes | memoryview] = []
    size_bytes = 0
    for part in chain.from_iterable(map(_cut, parts)):
        some.append(part)
        size_bytes += len(part)
        if size_bytes >= WRITE_BYTES:
            yield some
            some, size_bytes = [], 0
    if some:
        yield some


def _cut(part: bytes | memoryview) -> Iterable[bytes | memoryview]:
    if len(part) <= WRITE_BYTES:
        return (part,)
    view = memoryview(part)
    return (view[at : at + WRITE_BYTES] for at in range(0, len(view), WRITE_BYTES))
