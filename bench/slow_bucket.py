"""A server whose bucket takes 30 ms for each object, as an object store over a network does: `slow_bucket.py serve`."""

from __future__ import annotations

import time

from topics.cli.main import main
from topics.storage.replica.bucket import Bucket

UPLOAD_S = 0.03

create = Bucket.create


def slow_create(self: Bucket, name: str, data: bytes) -> bool:
    began = time.perf_counter()
    done = create(self, name, data)
    time.sleep(max(UPLOAD_S - (time.perf_counter() - began), 0))
    return done


if __name__ == "__main__":
    Bucket.create = slow_create  # type: ignore[method-assign]
    raise SystemExit(main())
