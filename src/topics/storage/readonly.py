"""A read-only view of a file system: every call that would change something raises EROFS."""

import errno
from typing import NoReturn

from topics.storage.fs import File, Fs, Lock


class ReadOnlyFs(Fs):
    """`inner` without the calls that change it. Files open for reading even if the caller asks for writing."""

    def __init__(self, inner: Fs) -> None:
        self._inner = inner

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        if create:
            self._refuse(path)
        return self._inner.open(path)

    def rename(self, src: str, dst: str) -> None:
        self._refuse(dst)

    def unlink(self, path: str) -> None:
        self._refuse(path)

    def mkdir(self, path: str) -> None:
        self._refuse(path)

    def rmdir(self, path: str) -> None:
        self._refuse(path)

    def listdir(self, path: str) -> list[str]:
        return self._inner.listdir(path)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def size(self, path: str) -> int:
        return self._inner.size(path)

    def sync_dir(self, path: str) -> None:
        """Do nothing: no name can have changed."""

    def lock(self, path: str) -> Lock:
        self._refuse(path)

    def lock_shared(self, path: str) -> Lock:
        return self._inner.lock_shared(path)

    def boot_id(self) -> str:
        return self._inner.boot_id()

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def _refuse(self, path: str) -> NoReturn:
        raise OSError(errno.EROFS, "this file system is open for reading only", path)
