"""The single files of a backup: read one whole, write one under its temporary name, read the marks of a segment."""

from contextlib import suppress

from topics.errors import Corrupt
from topics.storage.data_layout import TEMP_SUFFIX
from topics.storage.fs import File, Fs
from topics.storage.log import walfile
from topics.storage.segments import codec


class TemporaryFile:
    """The temporary file of `path`: synced at the end, or removed after an error."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs = fs
        self._path = path + TEMP_SUFFIX

    def __enter__(self) -> File:
        self._file = self._fs.open(self._path, create=True)
        self._file.truncate(0)
        return self._file

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self._file.sync()
        finally:
            self._file.close()
            if error is not None:
                with suppress(OSError):
                    self._fs.unlink(self._path)


def read_marks(file: File, footer: codec.Footer) -> bytearray:
    """Return the marks of a segment file, and close the file."""
    try:
        flags = file.pread(footer.count, footer.flags_at)
        return codec.decode_flags(flags.ljust(footer.count, b"\0")) or bytearray(footer.count)
    finally:
        file.close()


def read_whole(fs: Fs, path: str) -> bytes:
    file = fs.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def resumes(data: bytes, path: str) -> bool:
    """Return whether the header says where the previous log file ends: such a file counts even without a frame."""
    try:
        return walfile.decode_header(data, path=path).resume_number != 0
    except Corrupt:
        return False
