"""The files of a local checkpoint, as a replica has them.

A segment is uploaded once, with all its records live: its flags change in place, and the name of the object follows
from the rest of it. The snapshot of the replica has the marks of all segments instead (`pending`, as in a backup).
"""

from __future__ import annotations

import posixpath

import msgspec
import numpy as np
import xxhash
from msgspec import Struct

from topics.storage import snapshot as snap
from topics.storage.backup_files import read_marks
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs, read_whole
from topics.storage.replica import objects
from topics.storage.replica.bucket import Bucket
from topics.storage.replica.objects import FileRef
from topics.storage.segments import codec
from topics.storage.segments.marks import pack_marks, put_marks


class LocalFile(Struct, gc=False):
    """A file of a checkpoint: its path in the directory, and where its bytes are now."""

    path: str
    source: str
    footer: codec.Footer | None = None  # of a segment
    data: bytes = b""  # of a snapshot

    @property
    def known_name(self) -> str:
        """The name of the object; empty if it depends on bytes that have to be read first."""
        return "" if self.footer is None else _name(msgspec.msgpack.encode(tuple(self.footer)))


class LocalCheckpoint(Struct):
    snapshot: int
    clean: bool
    files: list[LocalFile]


def read_checkpoint(datadir: DataDir, number: int, *, cold_dir: str | None) -> LocalCheckpoint:
    """Return the files of snapshot `number`. Call this before the next marks are written into segments."""
    path = datadir.snapshot_path(number)
    snapshot = snap.decode(read_whole(datadir.fs, path), path=path, number=number)
    files: list[LocalFile] = []
    tails: set[int] = set()
    for topic in snapshot.topics:
        if topic.tail is not None:
            tails.add(topic.tail.tails)
        for ref in topic.segments:
            inside = datadir.segment_path(topic.topic_id, ref.first, generation=ref.generation)
            source = inside
            if ref.cold and cold_dir is not None:
                source = cold_dir + inside[len(datadir.segments_dir) :]
            footer = codec.Footer(*ref.footer)
            ref.pending, ref.cold = _all_marks(datadir.fs, source, footer, ref), False
            files.append(LocalFile(_inside(datadir, inside), source, footer))
    for tail in sorted(tails):
        files.append(LocalFile(_inside(datadir, datadir.tails_path(tail)), datadir.tails_path(tail)))
    files.append(LocalFile(_inside(datadir, path), path, data=snap.encode(snapshot)))
    return LocalCheckpoint(number, snapshot.clean, files)


def upload(bucket: Bucket, fs: Fs, file: LocalFile, known: dict[str, FileRef]) -> FileRef:
    """Return where the bucket has the file. Upload it unless it is `known`, by name, to be there."""
    if (there := known.get(file.known_name)) is not None:
        return FileRef(file.path, there.name, there.size_bytes, there.sum)
    data = file.data or read_whole(fs, file.source)
    if file.footer is not None:
        data = _without_marks(data, file.footer)
    name = file.known_name or _name(data)
    if (there := known.get(name)) is None:
        bucket.put(name, data)
    return FileRef(file.path, name, len(data), objects.sum64(data))


def _all_marks(fs: Fs, path: str, footer: codec.Footer, ref: snap.SegmentRef) -> bytes:
    """Return every mark of the segment, packed: those in its file, and those that the file may lack."""
    if ref.live == ref.count and not ref.pending:
        return b""
    marks = read_marks(fs.open(path), footer)
    put_marks(marks, ref.pending)
    return pack_marks(marks, np.flatnonzero(np.frombuffer(marks, np.uint8)))


def _without_marks(data: bytes, footer: codec.Footer) -> bytes:
    at, live = footer.flags_at, bytes([codec.LIVE]) * footer.count
    if data.startswith(live, at):
        return data  # mostly: a copy of megabytes less
    return b"".join((data[:at], live, data[at + footer.count :]))


def _inside(datadir: DataDir, path: str) -> str:
    return posixpath.relpath(path, datadir.root)


def _name(data: bytes) -> str:
    return objects.FILES + xxhash.xxh3_128_hexdigest(data)
