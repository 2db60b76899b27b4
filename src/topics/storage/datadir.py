"""The lock and the format of a data directory: one process at a time, and no files of a version it cannot read."""

import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from topics import __version__
from topics.storage.data_layout import TEMP_SUFFIX, DataLayout
from topics.storage.fs import Fs, Lock, LockHeld, next_step, read_whole

FORMAT_VERSION = 2  # raise it with every change of what is stored: see CONTRIBUTING.md, "Data formats"
OLDEST_FORMAT = 1  # all formats from this one on are read
UNFINISHED = ".partial"  # marks an incomplete copy

_FORMAT = re.compile(rb"topics-data ([0-9]{1,9})\n")
_SUBDIRS = ("wal", "segments", "snapshots", "ledger")
FILES = ("LOCK", "FORMAT", "VERSION", "REPLICA", "SAMPLES")
_OURS = frozenset({*FILES, *(name + TEMP_SUFFIX for name in FILES), *_SUBDIRS})


class DataDirError(Exception):
    """The data directory cannot be used. The text gives the operator the reason and the next step."""


class UnknownVersion(DataDirError):
    """Another version of topics wrote to the directory, and this one does not know all that is in it."""


class DataDir(DataLayout):
    """A data directory and its lock. Paths are available before `open`."""

    def __init__(self, fs: Fs, root: str) -> None:
        super().__init__(fs, root)
        self._lock: Lock | None = None
        self._sync_failed_path = posixpath.join(self.wal_dir, "SYNC_FAILED")
        self._format = FORMAT_VERSION
        self.written_by = ""  # the version of topics that last wrote to the directory; empty if it is unknown

    @contextmanager
    def _opening(self, verb: str, next_owner: str, instead: str = "") -> Iterator[None]:
        """Close the directory after an error, and raise `DataDirError` for an error of the operating system."""
        assert self._lock is None, "the data directory is already open"
        try:
            yield
        except LockHeld as held:
            raise self._error(f"is held by {held.owner or 'another process'}; {next_owner}") from None
        except OSError as error:
            self.close()
            text = f"cannot be {verb}: {error.strerror} ({error.filename or self.root})"
            if not isinstance(error, FileNotFoundError | NotADirectoryError) or error.filename != self.root:
                text += f"; {next_step(error)}{instead}"  # the caller knows where the name of the root came from
            raise self._error(text) from error
        except DataDirError:
            self.close()
            raise

    def open(self) -> None:
        """Create missing folders, take the lock, check the format, and remove temporary files. Raise `DataDirError`."""
        another = "or choose another TOPICS_DATA_DIR"
        with self._opening("used", f"stop it {another}", f", {another}"):
            self.fs.mkdir(self.root)
            self._refuse_foreign()
            self._lock = self.fs.lock(self.file_path("LOCK"))
            if not self.declared:
                if self._holds_data():
                    raise self._error("holds data and has lost its FORMAT file; restore the directory from a backup")
                self._sync_parents()
                self._write_format()  # the first file; all parent directories are synced before
            self.check_format()
            self._make_folders()

    def inspect(self) -> None:
        """Lock the directory for reading without a change to any name or byte, or raise `DataDirError`.

        It may be damaged: the only checks are that it is a data directory and that no process has it open.
        """
        with self._opening("read", "stop it first"):
            names = self.fs.listdir(self.root)
            if not {"FORMAT", *_SUBDIRS}.intersection(names):
                raise self._error("is no data directory of ours: there is neither a FORMAT file nor a log in it")
            if "LOCK" in names:
                self._lock = self.fs.lock_shared(self.file_path("LOCK"))

    def begin(self) -> None:
        """Open an empty directory, or an unfinished copy, as the target of a copy. Raise `DataDirError`.

        There is no FORMAT file until `complete`, so no server starts on an incomplete copy.
        """
        with self._opening("used", "stop it first", ", or choose another directory"):
            self.fs.mkdir(self.root)
            self._refuse_foreign()
            if UNFINISHED not in self.fs.listdir(self.root) and self._holds_data():
                raise self._error("holds data and has lost its FORMAT file; choose another directory")
            self._lock = self.fs.lock(self.file_path("LOCK"))
            self.fs.open(self.file_path(UNFINISHED), create=True).close()
            self._make_folders()

    def _make_folders(self) -> None:
        for name in _SUBDIRS:
            self.fs.mkdir(self.file_path(name))
        self.sweep()

    def complete(self) -> None:
        """Write FORMAT: the copy is complete and synced."""
        if not self.declared:
            self._sync_parents()
        self._format = 0
        self.sign()
        self.note_version()
        with suppress(FileNotFoundError):
            self.fs.unlink(self.file_path(UNFINISHED))
        self.fs.sync_dir(self.root)

    def sign(self) -> None:
        """Declare that this version writes to the directory from now on: call this before the first change.

        A version that does not know the format refuses the directory after that.
        """
        if self._format != FORMAT_VERSION:
            self._write_format()
            self._format = FORMAT_VERSION
        if self.written_by:
            self.note_version()

    def note_version(self) -> None:
        """Write VERSION. In a new directory, call this after the log has begun: VERSION shows that there is one."""
        if self.written_by != __version__:
            with suppress(OSError):  # the text only helps operators: a full disk must not prevent the start
                self.write_file(self.file_path("VERSION"), [b"%b\n" % __version__.encode()])
                self.written_by = __version__

    @property
    def keeps_ledger(self) -> bool:
        """Whether every log in the directory has a ledger. In a directory of format 1 it may lack one."""
        return self._format > OLDEST_FORMAT

    def unknown(self, what: str) -> UnknownVersion:
        """Return the error for a file that another version wrote."""
        by = f"topics {self.written_by}" if self.written_by else "another version of topics"
        return UnknownVersion(
            f"data directory {self.root} was written by {by}, and topics {__version__} does not know all of it: "
            f"{what}; start the version that wrote it, or restore a backup that this version made"
        )

    @property
    def declared(self) -> bool:
        return self.fs.exists(self.file_path("FORMAT"))

    def check_format(self) -> None:
        """Raise `DataDirError` unless this program knows the format that FORMAT names."""
        if not self.declared:
            raise self._error("has lost its FORMAT file; restore the directory from a backup")
        if self.fs.exists(self.file_path("VERSION")):
            self.written_by = read_whole(self.fs, self.file_path("VERSION")).decode("utf-8", "replace").strip()
        text = read_whole(self.fs, self.file_path("FORMAT"))
        found = _FORMAT.fullmatch(text)
        if found is None:
            raise self._error(f"has a damaged FORMAT file ({text[:40]!r}); restore the directory from a backup")
        self._format = int(found[1])
        if not OLDEST_FORMAT <= self._format <= FORMAT_VERSION:
            known = f"formats {OLDEST_FORMAT} to {FORMAT_VERSION} are known"
            raise self.unknown(f"it has format {self._format}, and {known}")

    def close(self) -> None:
        if self._lock is not None:
            lock, self._lock = self._lock, None
            lock.close()

    @property
    def is_there(self) -> bool:
        """Whether the opened directory still has its LOCK file. Writes to a removed or renamed directory are lost."""
        try:
            return self.fs.exists(self.file_path("LOCK"))
        except OSError:
            return True  # unknown: the next write reports the error

    # A power loss may cost these names. The start after one treats the log as after a failed sync anyway.

    @property
    def sync_failed(self) -> bool:
        """Whether a sync of the log has failed, and no start has saved what the log holds since then."""
        return self.fs.exists(self._sync_failed_path)

    def note_failed_sync(self) -> None:
        with suppress(OSError):
            self.fs.open(self._sync_failed_path, create=True).close()

    def forget_failed_sync(self) -> None:
        with suppress(FileNotFoundError):
            self.fs.unlink(self._sync_failed_path)

    def sweep(self) -> None:
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

    def _holds_data(self) -> bool:
        return any(self.fs.exists(self.file_path(name)) and self.fs.listdir(self.file_path(name)) for name in _SUBDIRS)

    def _write_format(self) -> None:
        self.write_file(self.file_path("FORMAT"), [b"topics-data %d\n" % FORMAT_VERSION])

    def _sync_parents(self) -> None:
        """Make the name of the directory durable, and the names of all directories above it."""
        at = self.root
        while (parent := posixpath.dirname(at)) not in (at, ""):
            with suppress(PermissionError):  # another user made this directory, so its name is durable
                self.fs.sync_dir(parent)
            at = parent
        if not self.root.startswith("/"):
            self.fs.sync_dir(".")

    def file_path(self, name: str) -> str:
        return posixpath.join(self.root, name)

    def _error(self, text: str) -> DataDirError:
        return DataDirError(f"data directory {self.root} {text}")
