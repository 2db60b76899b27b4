"""The layout of a data directory, and the lock that excludes a second process.

    LOCK                               held while a process has the directory open; names its owner
    FORMAT                             "topics-data 1": the version of this layout and of the files in it
    wal/<number>.wal                   the log
    ledger/<number>.ledger             what the log after snapshot <number> must hold, see `ledger.py`
    segments/<topic id>/<first seq>.seg
    snapshots/<number>.snap            metadata and watermarks
    snapshots/<number>.tails           the records that were in no segment when that snapshot was taken
    .partial                           in place of FORMAT until the first copy of a backup is complete

Numbers and seqs have 20 digits, so names sort as numbers and every u64 fits. Topic ids are plain decimals. The name of
a topic never becomes a path. A file has the suffix `.tmp` until it is complete and synced; the next open removes the
`.tmp` files that an ended process left. Names outside this layout are ignored.
"""

import posixpath
import re
from contextlib import suppress

from topics.storage.fs import Fs, Lock, LockHeld

FORMAT_VERSION = 1
TEMP_SUFFIX = ".tmp"
UNFINISHED = ".partial"  # marks an incomplete copy

_U64_MAX = (1 << 64) - 1
_FORMAT = re.compile(rb"topics-data ([0-9]{1,9})\n")
_NUMBER = re.compile(r"[0-9]{20}")
_TOPIC_ID = re.compile(r"0|[1-9][0-9]{0,19}")
_SUBDIRS = ("wal", "segments", "snapshots", "ledger")
_OURS = frozenset({"LOCK", "FORMAT", "FORMAT" + TEMP_SUFFIX, *_SUBDIRS})


class DataDirError(Exception):
    """The data directory cannot be used. The text gives the operator the reason and the next step."""


class DataDir:
    """The paths of a data directory and its lock. Paths are available before `open`."""

    def __init__(self, fs: Fs, root: str) -> None:
        self.fs = fs
        self.root = posixpath.normpath(root)
        self.wal_dir = posixpath.join(self.root, "wal")
        self.segments_dir = posixpath.join(self.root, "segments")
        self.snapshots_dir = posixpath.join(self.root, "snapshots")
        self.ledger_dir = posixpath.join(self.root, "ledger")
        self._lock: Lock | None = None

    def open(self) -> None:
        """Create missing folders, take the lock, check the format, and remove temporary files. Raise `DataDirError`."""
        assert self._lock is None, "the data directory is already open"
        try:
            self.fs.mkdir(self.root)
            self._refuse_foreign()
            self._lock = self.fs.lock(self._path("LOCK"))
            self._check_format()
            for name in _SUBDIRS:
                self.fs.mkdir(self._path(name))
            self._sweep()
        except LockHeld as held:
            owner = held.owner or "another process"
            raise self._error(f"is held by {owner}; stop it or choose another TOPICS_DATA_DIR") from None
        except OSError as error:
            self.close()
            raise self._error(
                f"cannot be used: {error.strerror} ({error.filename or self.root}); "
                "check its permissions and disk, or choose another TOPICS_DATA_DIR"
            ) from error
        except DataDirError:
            self.close()
            raise

    def inspect(self) -> None:
        """Lock the directory for reading without a change to any name or byte, or raise `DataDirError`.

        It may be damaged: the only checks are that it is a data directory and that no process has it open.
        """
        assert self._lock is None, "the data directory is already open"
        try:
            names = self.fs.listdir(self.root)
            if not {"FORMAT", *_SUBDIRS}.intersection(names):
                raise self._error("is no data directory of ours: there is neither a FORMAT file nor a log in it")
            if "LOCK" in names:
                self._lock = self.fs.lock_shared(self._path("LOCK"))
        except LockHeld as held:
            raise self._error(f"is held by {held.owner or 'another process'}; stop it first") from None
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror} ({error.filename or self.root})") from error

    def begin(self) -> None:
        """Open an empty directory, or an unfinished copy, as the target of a copy. Raise `DataDirError`.

        There is no FORMAT file until `complete`, so no server starts on an incomplete copy.
        """
        assert self._lock is None, "the data directory is already open"
        try:
            self.fs.mkdir(self.root)
            self._refuse_foreign()
            begun = UNFINISHED in self.fs.listdir(self.root)
            if not begun and self._holds_data():
                raise self._error("holds data and has lost its FORMAT file; choose another directory")
            self._lock = self.fs.lock(self._path("LOCK"))
            self.fs.open(self._path(UNFINISHED), create=True).close()
            for name in _SUBDIRS:
                self.fs.mkdir(self._path(name))
            self._sweep()
        except LockHeld as held:
            raise self._error(f"is held by {held.owner or 'another process'}") from None
        except OSError as error:
            self.close()
            raise self._error(f"cannot be used: {error.strerror} ({error.filename or self.root})") from error

    def complete(self) -> None:
        """Write FORMAT: the copy is complete and synced."""
        self.write_format()
        with suppress(FileNotFoundError):
            self.fs.unlink(self._path(UNFINISHED))
        self.fs.sync_dir(self.root)

    @property
    def declared(self) -> bool:
        """Whether there is a FORMAT file."""
        return self.fs.exists(self._path("FORMAT"))

    def check_format(self) -> None:
        """Raise `DataDirError` unless this program knows the format that FORMAT names."""
        if not self.fs.exists(self._path("FORMAT")):
            raise self._error("has lost its FORMAT file; restore the directory from a backup")
        self._read_format(self._path("FORMAT"))

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    @property
    def is_there(self) -> bool:
        """Whether the opened directory still has its LOCK file. Writes to a removed or renamed directory are lost."""
        try:
            return self.fs.exists(self._path("LOCK"))
        except OSError:
            return True  # unknown: the next write reports the error

    # Paths

    def wal_path(self, number: int) -> str:
        return posixpath.join(self.wal_dir, f"{_digits(number)}.wal")

    def topic_dir(self, topic_id: int) -> str:
        assert 0 <= topic_id <= _U64_MAX, "topic ids are u64"
        return posixpath.join(self.segments_dir, f"{topic_id:d}")  # `d` raises for anything but an int

    def segment_path(self, topic_id: int, first_seq: int) -> str:
        return posixpath.join(self.topic_dir(topic_id), f"{_digits(first_seq)}.seg")

    def snapshot_path(self, number: int) -> str:
        return posixpath.join(self.snapshots_dir, f"{_digits(number)}.snap")

    def tails_path(self, number: int) -> str:
        return posixpath.join(self.snapshots_dir, f"{_digits(number)}.tails")

    def ledger_path(self, number: int) -> str:
        return posixpath.join(self.ledger_dir, f"{_digits(number)}.ledger")

    # Existing files, in ascending order

    def wal_numbers(self) -> list[int]:
        return self._numbers(self.wal_dir, ".wal")

    def snapshot_numbers(self) -> list[int]:
        return self._numbers(self.snapshots_dir, ".snap")

    def tails_numbers(self) -> list[int]:
        return self._numbers(self.snapshots_dir, ".tails")

    def ledger_numbers(self) -> list[int]:
        """Return the numbers of the ledgers. Directories of earlier versions have none."""
        return self._numbers(self.ledger_dir, ".ledger") if self.fs.exists(self.ledger_dir) else []

    def topic_ids(self) -> list[int]:
        """Return the ids of the topics that have a directory, which may be empty."""
        names = self.fs.listdir(self.segments_dir)
        return sorted(int(name) for name in names if _TOPIC_ID.fullmatch(name) and int(name) <= _U64_MAX)

    def segment_seqs(self, topic_id: int) -> list[int]:
        """Return the first seq of each segment; an empty list for a topic without a directory."""
        path = self.topic_dir(topic_id)
        return self._numbers(path, ".seg") if self.fs.exists(path) else []

    # Changes

    def publish(self, path: str) -> None:
        """Rename the synced file `path + TEMP_SUFFIX` to `path`, and make the name durable."""
        self.fs.rename(path + TEMP_SUFFIX, path)
        self.fs.sync_dir(posixpath.dirname(path))

    def make_topic_dir(self, topic_id: int) -> str:
        """Create the directory for the segments of the topic, and make its name durable."""
        path = self.topic_dir(topic_id)
        if not self.fs.exists(path):
            self.fs.mkdir(path)
            self.fs.sync_dir(self.segments_dir)
        return path

    def remove_topic_dir(self, topic_id: int) -> None:
        """Remove the directory of the topic with its files. A crash may restore a part of it; call this again then."""
        path = self.topic_dir(topic_id)
        if self.fs.exists(path):
            for name in self.fs.listdir(path):
                self.fs.unlink(posixpath.join(path, name))
            self.fs.rmdir(path)
            self.fs.sync_dir(self.segments_dir)

    # Opening

    def _refuse_foreign(self) -> None:
        """Raise `DataDirError` if the directory holds foreign files: its name may be mistyped."""
        names = self.fs.listdir(self.root)
        foreign = [name for name in names if name not in _OURS and name != "lost+found" and not name.startswith(".")]
        if foreign and "FORMAT" not in names:
            raise self._error(
                f"holds other files ({foreign[0]}) and is no data directory of ours; "
                "choose an empty or new directory as TOPICS_DATA_DIR"
            )

    def _check_format(self) -> None:
        path = self._path("FORMAT")
        if not self.fs.exists(path):
            self._create_format()
        self._read_format(path)

    def _read_format(self, path: str) -> None:
        file = self.fs.open(path)
        try:
            text = file.pread(256, 0)
        finally:
            file.close()
        found = _FORMAT.fullmatch(text)
        if found is None:
            raise self._error(f"has a damaged FORMAT file ({text[:40]!r}); restore the directory from a backup")
        if int(found[1]) != FORMAT_VERSION:
            raise self._error(
                f"has format {int(found[1])} and this version of topics knows format {FORMAT_VERSION} only; "
                "start the version that wrote it, or choose another TOPICS_DATA_DIR"
            )

    def _holds_data(self) -> bool:
        return any(self.fs.exists(self._path(name)) and self.fs.listdir(self._path(name)) for name in _SUBDIRS)

    def _create_format(self) -> None:
        """Write FORMAT as the first file. All parent directories are synced before."""
        if self._holds_data():
            raise self._error("holds data and has lost its FORMAT file; restore the directory from a backup")
        at = self.root
        while (parent := posixpath.dirname(at)) not in (at, ""):
            with suppress(PermissionError):  # another user made this directory, so its name is durable
                self.fs.sync_dir(parent)
            at = parent
        if not self.root.startswith("/"):
            self.fs.sync_dir(".")
        self.write_format()

    def write_format(self) -> None:
        """Write the FORMAT file, and make it durable."""
        path = self._path("FORMAT")
        file = self.fs.open(path + TEMP_SUFFIX, create=True)
        try:
            file.truncate(0)
            file.pwrite(b"topics-data %d\n" % FORMAT_VERSION, 0)
            file.sync()
        finally:
            file.close()
        self.publish(path)

    def _sweep(self) -> None:
        """Remove temporary files, and make every existing name durable.

        A process that was killed between a rename and the sync of its directory leaves a name that the next power loss
        may undo, after later writes depend on it. This takes about 40 µs per directory.
        """
        topic_dirs = [self.topic_dir(topic_id) for topic_id in self.topic_ids()]
        folders = (self.root, self.wal_dir, self.segments_dir, self.snapshots_dir, self.ledger_dir)
        for path in (*folders, *topic_dirs):
            for name in self.fs.listdir(path):
                if name.endswith(TEMP_SUFFIX) and (path != self.root or name in _OURS):
                    self.fs.unlink(posixpath.join(path, name))
            self.fs.sync_dir(path)

    def _path(self, name: str) -> str:
        return posixpath.join(self.root, name)

    def _numbers(self, path: str, suffix: str) -> list[int]:
        stems = (name.removesuffix(suffix) for name in self.fs.listdir(path) if name.endswith(suffix))
        return [int(stem) for stem in stems if _NUMBER.fullmatch(stem) and int(stem) <= _U64_MAX]

    def _error(self, text: str) -> DataDirError:
        return DataDirError(f"data directory {self.root} {text}")


def _digits(number: int) -> str:
    assert 0 <= number <= _U64_MAX, "file numbers are u64"
    return f"{number:020d}"
