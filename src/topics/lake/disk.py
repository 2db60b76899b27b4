"""Files that are there as a whole or not at all, and stay there when the power goes."""

from __future__ import annotations

import os
from contextlib import suppress

from topics.lake.errors import LakeError


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
