"""A server with many topics: what a start and a checkpoint cost for each of them."""

from __future__ import annotations

from typing import Any

from topics.testing.disk import SimDisk
from topics.testing.harness import SimServer


class WatchedDisk(SimDisk):
    """Notes which files were opened."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.opened: list[str] = []

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        self.opened.append(path)
        return super().open(path, write=write, create=create)


def test_start_opens_the_tails_file_once_for_all_topics():
    disk = WatchedDisk(seed=1)
    server = SimServer.start(disk)
    for at in range(20):
        server.append(f"t{at}", str(at), durability="fsync")
    server.close()
    disk.opened.clear()

    again = server.next(disk)

    assert len([path for path in disk.opened if path.endswith(".tails")]) == 1
    assert [again.data(f"t{at}") for at in range(20)] == [[str(at)] for at in range(20)]
