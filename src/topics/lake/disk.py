"""Files that are there as a whole or not at all, and stay there when the power goes."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from topics.lake.errors import LakeError

TELLING = {
    errno.ENOSPC: "make room there, and run the same command again",
    errno.EDQUOT: "make room there, and run the same command again",
    errno.EROFS: "see how it is mounted, and run the same command again",
    errno.EACCES: "see to whom it belongs, and run the same command again",
    errno.EPERM: "see to whom it belongs, and run the same command again",
    errno.EIO: "see to the disk, then have topics pipeline audit look at the lake",
}


@contextmanager
def telling(place: str) -> Iterator[None]:
    """What a disk refuses becomes an error that names the place, and says what to do next."""
    try:
        yield
    except OSError as error:
        if error.errno not in TELLING:
            raise
        name = error.filename if isinstance(error.filename, str) else place
        raise LakeError(f"{name}: {error.strerror}; {TELLING[error.errno]}") from error


def sync_folder(path: str) -> None:
    """Makes renames in a folder last."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: str, data: bytes, *, via: str) -> None:
    """Writes or replaces a file. It grows in the folder `via`, whose left-overs somebody cleans."""
    temporary = _write_temporary(via, data)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def create_whole(path: str, data: bytes, *, via: str) -> bool:
    """Creates a file with all of its content; False if there is one of that name already.

    A hard link does both at once: nobody sees half a file, and of several who try one succeeds.
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
