"""The layout of a data directory: paths and existing files.

    LOCK                               held while a process has the directory open; names its owner
    FORMAT                             "topics-data N": the number of the format of this layout and of the files in it
    VERSION                            the version of topics that last wrote to the directory
    SAMPLES                            the last day for the console, see `server/loop/samples`; may be missing
    REPLICA                            JSON: the replica that a server with this directory writes, see `replica/start`
    wal/<number>.wal                   the log
    wal/SYNC_FAILED                    empty; a sync of the log has failed, so the log may lack what was not synced
    ledger/<number>.ledger             what the log after snapshot <number> must hold, see `ledger.py`
    segments/<topic id>/<first seq>.seg            sealed records; rewritten n times: <first seq>-<n>.seg
    snapshots/<number>.snap            metadata and watermarks
    snapshots/<number>.tails           the records that were in no segment when that snapshot was taken
    .partial                           in place of FORMAT until the first copy of a backup is complete

Numbers and seqs have 20 digits, so names sort as numbers and every u64 fits. Topic ids are plain decimals. The name of
a topic never becomes a path. A file has the suffix `.tmp` until it is complete and synced; the next open removes the
`.tmp` files that an ended process left. Names outside this layout are ignored.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partialmethod
from itertools import chain
from typing import TYPE_CHECKING

from topics.errors import Corrupt
from topics.storage.fs import File, Fs
from topics.storage.worker import INLINE, Worker, rested

if TYPE_CHECKING:
    from topics.storage.snapshot import SegmentRef

TEMP_SUFFIX = ".tmp"
WRITE_BYTES = 256 << 10  # takes about 0.3 ms, for which the kernel may keep the core of the event loop

_U64_MAX = (1 << 64) - 1
_NUMBER = re.compile(r"[0-9]{20}")
_SEGMENT = re.compile(r"[0-9]{20}(-[1-9][0-9]*)?\.seg")
_TOPIC_ID = re.compile(r"0|[1-9][0-9]{0,19}")


class DataLayout:
    """The paths of a data directory, and the files that exist in it."""

    def __init__(self, fs: Fs, root: str) -> None:
        self.fs = fs
        self.root = posixpath.normpath(root)
        self.wal_dir = posixpath.join(self.root, "wal")
        self.segments_dir = posixpath.join(self.root, "segments")
        self.snapshots_dir = posixpath.join(self.root, "snapshots")
        self.ledger_dir = posixpath.join(self.root, "ledger")
        self.samples_path = posixpath.join(self.root, "SAMPLES")

    # Paths

    def _path_of(self, folder: str, suffix: str, number: int) -> str:
        return posixpath.join(self.root, folder, f"{_digits(number)}{suffix}")

    def _numbers(self, folder: str, suffix: str) -> list[int]:
        """Return the numbers of the existing files, in ascending order."""
        path = posixpath.join(self.root, folder)
        names = self.fs.listdir(path) if folder != "ledger" or self.fs.exists(path) else []  # early versions had none
        stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
        return [int(stem) for stem in stems if _NUMBER.fullmatch(stem) and int(stem) <= _U64_MAX]

    wal_path, wal_numbers = partialmethod(_path_of, "wal", ".wal"), partialmethod(_numbers, "wal", ".wal")
    snapshot_path = partialmethod(_path_of, "snapshots", ".snap")
    snapshot_numbers = partialmethod(_numbers, "snapshots", ".snap")
    tails_path = partialmethod(_path_of, "snapshots", ".tails")
    tails_numbers = partialmethod(_numbers, "snapshots", ".tails")
    ledger_path = partialmethod(_path_of, "ledger", ".ledger")
    ledger_numbers = partialmethod(_numbers, "ledger", ".ledger")

    def topic_dir(self, topic_id: int) -> str:
        assert 0 <= topic_id <= _U64_MAX, "topic ids are u64"
        return posixpath.join(self.segments_dir, f"{topic_id:d}")  # `d` raises for anything but an int

    def segment_path(self, topic_id: int, first_seq: int, cold_dir: str | None = None, *, generation: int = 0) -> str:
        """Return the path of a segment: in the folder of cold segments, if one is given."""
        name = _digits(first_seq) + (f"-{generation}.seg" if generation else ".seg")
        hot = posixpath.join(self.topic_dir(topic_id), name)
        return hot if cold_dir is None else cold_dir + hot[len(self.segments_dir) :]

    def path_of(self, topic_id: int, ref: "SegmentRef", cold_dir: str | None = None) -> str:
        """Return the path of the file that a snapshot refers to."""
        return self.segment_path(topic_id, ref.first, cold_dir if ref.cold else None, generation=ref.generation)

    def topic_ids(self) -> list[int]:
        """Return the ids of the topics that have a directory, which may be empty."""
        names = self.fs.listdir(self.segments_dir)
        return sorted(int(name) for name in names if _TOPIC_ID.fullmatch(name) and int(name) <= _U64_MAX)

    def segment_paths(self, topic_id: int) -> list[str]:
        """Return the paths of the segments, in ascending order; an empty list for a topic without a directory."""
        folder = self.topic_dir(topic_id)
        names = self.fs.listdir(folder) if self.fs.exists(folder) else []
        return [posixpath.join(folder, name) for name in names if _SEGMENT.fullmatch(name)]

    # Changes

    @contextmanager
    def new_file(self, path: str, *, named: bool = True, open_after: bool = False) -> Iterator[File]:
        """Give out the temporary file of `path`. Sync it at the end, and publish it if it shall be `named`.

        Remove it after an error. With `open_after` the caller closes it.
        """
        file = self.fs.open(path + TEMP_SUFFIX, create=True)
        try:
            file.truncate(0)
            yield file
            file.sync()
            if not open_after:
                file.close()
            if named:
                self.publish(path)
                file.path = path
        except BaseException:
            with suppress(OSError):
                file.close()
            with suppress(OSError):
                self.fs.unlink(path + TEMP_SUFFIX)
            raise

    def write_file(self, path: str, parts: Iterable[bytes | memoryview], worker: Worker = INLINE) -> None:
        """Write a file that is durable under its name when this returns. Write none if there are no parts."""
        batches, at = rested(worker, _batches(rested(worker, parts))), 0
        first = next(batches, None)
        if first is None:
            return
        with self.new_file(path) as file:
            for some in chain((first,), batches):
                file.pwritev(some, at)
                at += sum(map(len, some))

    def copy_file(self, source: str, target: str, worker: Worker) -> None:
        """Copy a file. Raise `Corrupt` if it is shorter than its size says."""
        folder = posixpath.dirname(target)
        if not self.fs.exists(folder):
            self.fs.mkdir(folder)
            self.fs.sync_dir(posixpath.dirname(folder))
        with closing(self.fs.open(source)) as origin, self.new_file(target) as made:
            at, size = 0, origin.size()
            while at < size:
                piece = origin.pread(WRITE_BYTES, at)
                if not piece:
                    raise Corrupt(source, at, f"the file ends here instead of after {size} bytes")
                made.pwrite(piece, at)
                at += len(piece)
                worker.rest()

    def publish(self, path: str) -> None:
        """Rename the synced file `path + TEMP_SUFFIX` to `path`, and make the name durable."""
        self.fs.rename(path + TEMP_SUFFIX, path)
        self.fs.sync_dir(posixpath.dirname(path))

    def make_topic_dir(self, topic_id: int) -> None:
        """Create the directory for the segments of the topic, and make its name durable."""
        path = self.topic_dir(topic_id)
        if not self.fs.exists(path):
            self.fs.mkdir(path)
            self.fs.sync_dir(self.segments_dir)

    def remove_topic_dir(self, topic_id: int) -> None:
        """Remove the directory of the topic with its files. A crash may restore a part of it; call this again then."""
        path = self.topic_dir(topic_id)
        if self.fs.exists(path):
            for name in self.fs.listdir(path):
                self.fs.unlink(posixpath.join(path, name))
            self.fs.rmdir(path)
            self.fs.sync_dir(self.segments_dir)


def holds_topics(fs: Fs, folder: str) -> bool:
    """Return whether the folder has folders of topics: a cold folder whose disk is not mounted has none."""
    try:
        return any(map(_TOPIC_ID.fullmatch, fs.listdir(folder)))
    except OSError:
        return False


def _digits(number: int) -> str:
    assert 0 <= number <= _U64_MAX, "file numbers are u64"
    return f"{number:020d}"


def _batches(parts: Iterable[bytes | memoryview]) -> Iterator[list[bytes | memoryview]]:
    """Yield the parts in lists of at least `WRITE_BYTES`, except for the last one. Cut parts that are larger."""
    some: list[bytes | memoryview] = []
    size_bytes = 0
    for part in parts:
        view = part if len(part) <= WRITE_BYTES else memoryview(part)
        for at in range(0, len(part), WRITE_BYTES):
            some.append(view[at : at + WRITE_BYTES])
            size_bytes += len(some[-1])
            if size_bytes >= WRITE_BYTES:
                yield some
                some, size_bytes = [], 0
    if some:
        yield some
