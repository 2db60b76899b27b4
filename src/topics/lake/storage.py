"""The place of a lake: a local directory, or a prefix of an object store. Files have paths relative to it.

A directory is opened by Arrow, and its files are synced before they count as written. An object store is opened through
`deltalake`, so that tables and files use the same settings. Settings come from the environment (`AWS_…`, `GOOGLE_…`,
`AZURE_…`) and from `TOPICS_LAKE_SECRETS`, a JSON object that `--storage-option` fills. The name of the variable makes
Spark hide its value.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePath
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import xxhash

from topics.lake.errors import LakeError, NoLake

SETTINGS = "TOPICS_LAKE_SECRETS"
PROBE = "_writable"  # a file that is written and removed to find out whether that is allowed
SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")

REMEDIES = {
    errno.ENOSPC: "free space there, and run the same command again",
    errno.EDQUOT: "free space there, and run the same command again",
    errno.EROFS: "check how it is mounted, and run the same command again",
    errno.EACCES: "check its owner and permissions, and run the same command again",
    errno.EPERM: "check its owner and permissions, and run the same command again",
    errno.EIO: "check the disk, then check the lake with topics pipeline audit",
}

MAX_CAUSE_CHARS = 300  # an answer of a store may be a whole page

_ARROW = re.compile(r"^\s*(\x1b\[\d+m)?↳(\x1b\[\d+m)?")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


def location(text: str, *, noun: str = "lake") -> str:
    """Return the absolute path of a local lake, or the URL of one in an object store, without a trailing slash.

    Raise `NoLake` if it cannot be a lake, or what `noun` says.
    """
    if not text:
        raise NoLake(f"the path of the {noun} is empty: give the directory or the URL of a {noun}")
    found = _URL.fullmatch(text)
    if found is None or "/" in found[1]:
        path = os.path.abspath(text)
    elif found[1].lower() in SCHEMES:
        if not re.fullmatch(r"//[^/@]+(/.*)?", found[2]):
            raise NoLake(f"{text}: not the URL of a {noun}, such as s3://bucket/{noun}")
        return f"{found[1].lower()}:{found[2].rstrip('/')}"
    elif found[1] == "file" and found[2].startswith("/"):
        path = os.path.abspath("/" + found[2].lstrip("/"))
    else:
        raise NoLake(f"{text}: a {noun} is a directory, or a URL that begins with s3://, gs:// or az://")
    if os.path.exists(path) and not os.path.isdir(path):
        raise NoLake(f"{path} is a file, and a {noun} is a directory")
    return path


def real_location(text: str) -> str:
    """Return the location with symbolic links resolved, so that one lake has one name."""
    found = location(text)
    return os.path.realpath(found) if found.startswith("/") else found


def set_options(options: Mapping[str, str]) -> None:
    """Use these settings of the object store in this process and in the Spark processes that it starts."""
    if options:
        os.environ[SETTINGS] = json.dumps({**given_options(), **options})


def given_options() -> dict[str, str]:
    """Return the settings of `set_options`. Raise `LakeError` if the variable is not a JSON object of strings."""
    text = os.environ.get(SETTINGS) or "{}"
    try:
        found = json.loads(text)
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError):
        raise LakeError(f"{SETTINGS} is not a JSON object of settings") from None


class Storage:
    """The files of a lake. The constructor does no I/O."""

    def __init__(self, where: str, *, noun: str = "lake") -> None:
        self.location = location(where, noun=noun)
        self.is_local = self.location.startswith("/")
        self.options = {} if self.is_local else given_options()
        self._files: pafs.FileSystem | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.location,)

    def uri(self, path: str) -> str:
        """Return the path or URL of a table or file, as other programs need it."""
        return f"{self.location}/{path}" if path else self.location

    @property
    def files(self) -> pafs.FileSystem:
        """The file system of the lake, for paths relative to it."""
        if self._files is None:
            if self.is_local:
                self._files = pafs.SubTreeFileSystem(self.location, pafs.LocalFileSystem())
            else:
                self._files = _object_store(self.location, self.options)
        return self._files

    def check_writable(self) -> None:
        """Raise `LakeError` if this user may not write to the lake."""
        is_writable = os.access(self.location, os.W_OK | os.X_OK)
        if not self.is_local:
            with suppress(OSError):
                self.write(PROBE, b"")
                is_writable = self.remove(PROBE)
        if not is_writable:
            raise LakeError(f"{self.location} is not writable for this user")

    # --- files

    def open(self, path: str) -> Any:
        """Open a file for reading. Raise `FileNotFoundError` if it does not exist."""
        return self.files.open_input_file(path)

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, or None if it does not exist."""
        try:
            with self.files.open_input_stream(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def create(self, path: str) -> Any:
        """Create a file and its folders, and return the stream to write it."""
        if self.is_local:
            os.makedirs(os.path.dirname(self.uri(path)), exist_ok=True)
        return self.files.open_output_stream(path)

    def seal(self, path: str) -> str:
        """Return the final path of a written file: in a directory, rename it so that its name has its checksum.

        If another run has removed the file meanwhile, return its path as it is: the commit will say why.
        """
        if not self.is_local:
            return path
        try:
            sealed = f"{path.removesuffix('.parquet')}-{self.sum(path)}.parquet"
            os.rename(self.uri(path), self.uri(sealed))
        except FileNotFoundError:
            return path
        return sealed

    def sum(self, path: str) -> str:
        with open(self.uri(path), "rb", buffering=0) as file:
            return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()

    def write(self, path: str, data: bytes) -> None:
        """Write or replace a small file atomically."""
        if not self.is_local:
            with self.files.open_output_stream(path) as file:
                file.write(data)
            return
        target = self.uri(path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        temporary = f"{target}.{os.urandom(4).hex()}.tmp"
        with open(temporary, "wb") as local:
            local.write(data)
            local.flush()
            os.fsync(local.fileno())
        os.replace(temporary, target)
        _sync(os.path.dirname(target))

    def remove(self, path: str) -> bool:
        """Remove a file. Return whether it existed."""
        try:
            self.files.delete_file(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int | None:
        """Return the size of a file, or None if it does not exist."""
        [info] = self.files.get_file_info([path])
        return int(info.size) if info.type == pafs.FileType.File else None

    def files_in(self, folder: str) -> list[pafs.FileInfo]:
        """Return the files below a folder. Their times are those of the storage, not of this machine."""
        found = self.files.get_file_info(pafs.FileSelector(folder, allow_not_found=True, recursive=True))
        return [info for info in found if info.type == pafs.FileType.File]

    def names(self) -> list[str]:
        """Return the names directly in the lake, of files and of folders."""
        found = self.files.get_file_info(pafs.FileSelector("", allow_not_found=True, recursive=False))
        return sorted(info.base_name for info in found)

    def has_folder(self, path: str) -> bool:
        return os.path.isdir(self.uri(path))

    def sync(self, paths: Sequence[str]) -> None:
        """Sync files and their folders, so that they survive a power failure. An object store has done that already."""
        if self.is_local:
            folders = {str(one) for path in paths for one in PurePath(path).parents}  # one of them is the lake itself
            for path in (*paths, *folders):
                with suppress(FileNotFoundError):
                    _sync(self.uri(path))

    def sync_place(self) -> None:
        """Sync the folder that holds this place, so that a new place survives a power failure."""
        if self.is_local:
            _sync(os.path.dirname(self.location))


def _object_store(location: str, options: dict[str, str]) -> pafs.FileSystem:
    from deltalake.fs import DeltaStorageHandler

    class Output:
        """A file that takes any buffer: Arrow passes its own kind, and deltalake takes only bytes."""

        def __init__(self, file: Any) -> None:
            self._file = file
            self.closed = False

        def write(self, data: Any) -> int:
            self._file.write(bytes(memoryview(data)))
            return len(memoryview(data))

        def flush(self) -> None:
            self._file.flush()

        def close(self) -> None:
            if not self.closed:
                self.closed = True
                self._file.close()

    class Handler(DeltaStorageHandler):
        def open_output_stream(self, path: str, metadata: Any = None) -> Any:
            return pa.PythonFile(Output(self._handler.open_output_stream(path, metadata)), "w")

    return pafs.PyFileSystem(Handler(location, options))


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def causes(error: Exception) -> str:
    """Return the causes in an error of an object store on one line, without URLs, which may contain secrets.

    The store writes each cause on a line of its own, behind a coloured arrow.
    """
    lines = [_ARROW.sub("", line).strip() for line in str(error).splitlines()]
    found = [line for line in lines if line and "://" not in line]
    return ": ".join(found)[:MAX_CAUSE_CHARS] or type(error).__name__


@contextmanager
def with_remedies(where: str) -> Iterator[None]:
    """Turn a storage error into a `LakeError` that names the file, or else `where`, and the remedy."""
    try:
        yield
    except OSError as error:
        if isinstance(error, FileNotFoundError) or isinstance(error, pa.ArrowException):
            raise
        if error.errno in REMEDIES:
            name = error.filename if isinstance(error.filename, str) else where
            raise LakeError(f"{name}: {error.strerror}; {REMEDIES[error.errno]}") from error
        if error.errno is None and not where.startswith("/"):
            raise LakeError(
                f"{where}: {causes(error)}; check the URL, and the settings and keys of the store"
            ) from error
        raise
