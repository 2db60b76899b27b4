"""Write files atomically and durably, and turn disk errors into errors with a remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from topics.lake.errors import LakeError

REMEDIES = {
    errno.ENOSPC: "free space there, and run the same command again",
    errno.EDQUOT: "free space there, and run the same command again",
    errno.EROFS: "check how it is mounted, and run the same command again",
    errno.EACCES: "check its owner and permissions, and run the same command again",
    errno.EPERM: "check its owner and permissions, and run the same command again",
    errno.EIO: "check the disk, then check the lake with topics pipeline audit",
}


@contextmanager
def with_remedies(path: str) -> Iterator[None]:
    """Turn a disk error into a `LakeError` that names the file, or else `path`, and the remedy."""
    try:
        yield
    except OSError as error:
        if error.errno not in REMEDIES:
            raise
        name = error.filename if isinstance(error.filename, str) else path
        raise LakeError(f"{name}: {error.strerror}; {REMEDIES[error.errno]}") from error


def sync_folder(path: str) -> None:
    """Sync a folder, so that renames in it survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: str, data: bytes, *, via: str) -> None:
    """Write or replace a file atomically. The temporary file is in the folder `via`, which is cleaned regularly."""
    temporary = _write_temporary(via, data)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def create_whole(path: str, data: bytes, *, via: str) -> bool:
    """Create a file with all of its content. Return False if the name is taken.

    A hard link is atomic: readers never see half a file, and one of several concurrent writers succeeds.
    """
    temporary = _write_temporary(via, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        raise LakeError(f"{path}: cannot be created: {error.strerror}; a lake needs hard links") from error
    finally:
        os.unlink(temporary)
    sync_folder(os.path.dirname(path))
    return True


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _write_temporary(folder: str, data: bytes) -> str:
    temporary = os.path.join(folder, f"{os.urandom(8).hex()}.tmp")
    with open(temporary, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary
