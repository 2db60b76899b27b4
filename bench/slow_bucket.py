"""A server whose bucket takes 30 ms for each object, as an object store over a network does: `slow_bucket.py serve`."""

from __future__ import annotations

import time

from topics.cli.main import main
from topics.storage.replica.bucket import ObjectStore

UPLOAD_S = 0.03

create = ObjectStore.create


def slow_create(self: ObjectStore, name: str, data: bytes) -> bool:
    time.sleep(UPLOAD_S)
    return create(self, name, data)


if __name__ == "__main__":
    ObjectStore.create = slow_create  # type: ignore[method-assign]
    raise SystemExit(main())
