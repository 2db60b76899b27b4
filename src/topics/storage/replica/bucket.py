"""The transport: objects in S3, Google Cloud Storage, Azure or a directory, through `obstore`. All calls block.

Credentials come from the environment or the role of the machine, as for other programs (AWS_ACCESS_KEY_ID,
GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_NAME …), never from the URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from topics.storage.fs import Fs
from topics.storage.replica.objects import ReplicaError

INSTALL = "install it with `pip install topics-engine[replica]`"


class BucketError(ReplicaError):
    """A request to the bucket failed. The text has the reason, and after `; ` the next step."""


class Listed(NamedTuple):
    """An object as a list shows it."""

    name: str
    size_bytes: int
    at_ms: int  # when it was written, by the clock of the bucket


def open_bucket(url: str, *, timeout_ms: int = 10_000) -> Bucket:
    """Return the bucket at the URL. Raise `BucketError` if it cannot be used at all."""
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise BucketError(f"a replica needs the package obstore; {INSTALL}") from error
    parts = urlsplit(url)
    limit = timedelta(milliseconds=timeout_ms)
    options: dict[str, Any] = {"mkdir": True}
    if parts.scheme != "file":
        # One retry: the sequence tries again by itself, and a request must not hold its thread for long.
        options = {
            "client_options": {"timeout": limit, "connect_timeout": limit, "allow_http": True},
            "retry_config": {"max_retries": 1, "retry_timeout": limit},
        }
    try:
        store = from_url(url, **options)
    except Exception as error:
        raise _failure(url, error) from error
    return Bucket(url, store, parts.path if parts.scheme == "file" else None)


class Bucket:
    """A flat set of objects. Those of a directory are synced, so that they survive a power loss.

    Every call may raise `BucketError`: what it did is unknown then.
    """

    def __init__(self, url: str, store: Any, folder: str | None) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        self.url = url
        self._obs: Any = obstore
        self._exists: type[Exception] = AlreadyExistsError
        self._store = store
        self._folder = folder
        self.is_sorted = folder is None  # whether a list is in the order of names

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one of this name. Return whether it was written."""
        with self._named():
            try:
                self._obs.put(self._store, name, data, mode="create", use_multipart=False)
            except self._exists:
                return False
            self._sync(name)
            return True

    def put(self, name: str, data: bytes) -> None:
        """Write an object, in parts if it is large, and replace one of this name."""
        with self._named():
            self._obs.put(self._store, name, data, use_multipart=True)
            self._sync(name)

    def get(self, name: str) -> bytes | None:
        """Return the bytes of an object; None if there is none."""
        with self._named(), suppress(FileNotFoundError):
            return bytes(self._obs.get(self._store, name).bytes())
        return None

    def get_range(self, name: str, size: int, at: int) -> bytes:
        """Return a part of an object."""
        with self._named():
            return bytes(self._obs.get_range(self._store, name, start=at, length=size))

    def ls(self, prefix: str, after: str = "") -> Iterator[Listed]:
        """Return the objects whose names begin with `prefix`, in any order; only those behind `after`, if given."""
        with self._named():
            for page in self._obs.list(self._store, prefix.rstrip("/"), offset=after or None, chunk_size=1000):
                for one in page:
                    yield Listed(one["path"], one["size"], int(one["last_modified"].timestamp() * 1000))

    def delete(self, names: list[str]) -> None:
        """Remove objects. A missing one is no error."""
        for at in range(0, len(names), 1000):
            with self._named(), suppress(FileNotFoundError):
                self._obs.delete(self._store, names[at : at + 1000])

    def _sync(self, name: str) -> None:
        if self._folder is None:
            return
        fs, path = Fs(), os.path.join(self._folder, name)
        with closing(fs.open(path)) as file:
            file.sync()
        fs.sync_dir(os.path.dirname(path))

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Raise the error of a request with the bucket in it, and what an operator does next."""
        try:
            yield
        except Exception as error:
            raise _failure(self.url, error) from error


# What an operator does next, by a part of the error and its class, in lower case. The first one counts.
_RIGHTS = "give this server the right to list, read, write and delete objects there"
_REGION = "set AWS_REGION to the region of the bucket"
_CREATE = "create the bucket, or correct TOPICS_REPLICA"
_CREDENTIALS = "set the credentials in the environment, or give the machine a role"
_STEPS = {
    "requesttimetooskewed": "set the clock of this machine",
    "signaturedoesnotmatch": "correct the secret key in the environment",
    "permissiondeniederror": _RIGHTS, "unauthenticatederror": _RIGHTS, "permissionerror": _RIGHTS,
    "notimplemented": "use a bucket with conditional writes (If-None-Match)",
    "nosuchbucket": _CREATE, "notfounderror": _CREATE,
    "account must be specified": "set AZURE_STORAGE_ACCOUNT_NAME",
    "permanentredirect": _REGION, "301 moved": _REGION, "region": _REGION,
    "credential": _CREDENTIALS, "metadata": _CREDENTIALS, "169.254": _CREDENTIALS,
    "": "check that the bucket can be reached from here",
}  # fmt: skip


def _failure(url: str, error: Exception) -> BucketError:
    """Return the error for an operator. Only the first line, and the code of S3: the others have request headers."""
    whole, kind = str(error), type(error).__name__
    text = (whole.splitlines() or [kind])[0].replace("; ", ", ").partition("<?xml")[0].rstrip(" :")
    if (code := re.search(r"<Code>(\w+)</Code>", whole)) is not None:
        text = f"{text}: {code[1]}"
    low = f"{kind} {whole}".lower()
    return BucketError(f"{url}: {text}; {next(step for part, step in _STEPS.items() if part in low)}")
