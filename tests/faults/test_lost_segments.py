"""Files of records that are missing, empty or foreign, in the data directory and in the cold folder.

A start serves the other records, reports each lost range to readers, and gives no seq out twice. A file that disappears
while the server runs is reported in the same way, and no request fails because of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.conftest import Counts
from tests.faults.ledger import Client
from tests.faults.test_crash_matrix import check_works
from tests.sampling import SEED
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.steps import run_all
from topics.model.consumer import ConsumerRequest
from topics.model.records import TagMatch
from topics.storage.segments.cold import waiting

COLD = "/cold"
TOPICS = {"f": "fsync", "g": "fsync", "d": "disk"}
Damage = Callable[[SimDisk, str, list[str]], bool]


def filled(*, cold_folder: bool, cold_cache: bool = False) -> Client:
    """Return the clients of a server with sealed segments, open segments and a log after them, in three topics."""
    disk = SimDisk(seed=SEED, cold=cold_cache)
    disk.mkdir(COLD)
    client = Client(SimServer.start(disk, cold_dir=COLD if cold_folder else None, hot_segments=int(cold_folder)))
    for name, durability in TOPICS.items():
        client.put(name, durability=durability)
        client.append(name, 3, tag="t")
        client.append(name, 7)
    client.checkpoint()
    client.delete("f", before_seq=2)
    client.checkpoint()
    for name in TOPICS:
        client.append(name, 2, tag="t")
    client.checkpoint()
    client.append("f", 1)
    client.checkpoint()  # the snapshot names the segments in the cold folder
    client.append("f", 1)
    return client


def files(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith((".seg", ".tails"))]


def missing(disk: SimDisk, path: str, others: list[str]) -> bool:
    disk.unlink(path)
    disk.sync_dir(path.rpartition("/")[0])
    return True


def overwrite(disk: SimDisk, path: str, data: bytes) -> bool:
    file = disk.open(path, write=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync()
    return True


def empty(disk: SimDisk, path: str, others: list[str]) -> bool:
    return overwrite(disk, path, b"")


def zeroed(disk: SimDisk, path: str, others: list[str]) -> bool:
    return overwrite(disk, path, bytes(len(disk.contents(path))))


def foreign(disk: SimDisk, path: str, others: list[str]) -> bool:
    """Give the file the bytes of another file of the same topic, if there is one, or of the same kind."""
    kind, folder = path.rpartition(".")[2], path.rpartition("/")[0]
    same = [other for other in others if other != path and other.endswith(kind)]
    beside = [other for other in same if other.startswith(folder)]
    return bool(same) and overwrite(disk, path, disk.contents((beside or same)[-1]))


def stranger(disk: SimDisk, path: str, others: list[str]) -> bool:
    """Give the file the bytes of a file of another topic that holds the same seqs."""
    folder, _, name = path.rpartition("/")
    same = [other for other in others if other.endswith(f"/{name}") and not other.startswith(folder)]
    return bool(same) and foreign(disk, path, [path, *same])


DAMAGES: list[Damage] = [missing, empty, zeroed, foreign, stranger]


def check_damaged(client: Client, after: SimServer) -> None:
    client.ledger.check_damaged(after, found_by_readers=True)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("cold_folder", [False, True])
def test_damaged_file_of_records_is_reported_by_a_start(damage: Damage, cold_folder: bool, counts: Counts) -> None:
    client = filled(cold_folder=cold_folder)
    disk = client.server.disk.crash("keep")
    assert any(path.startswith(COLD) for path in files(disk)) is cold_folder
    whole = client.server.next(disk.clone()).view()
    lost = 0
    for path in files(disk):
        twin = disk.clone()
        if not damage(twin, path, files(disk)):
            continue
        try:
            after = client.server.next(twin)
            check_damaged(client, after)
            found = after.view()
            lost += found != whole
            again = after.crash("keep")
            assert again.view() == found, "a second start finds something else"
            check_works(again)
        except BaseException as error:
            error.add_note(f"seed {SEED}, {damage.__name__} {path}")
            raise
    assert lost > 2
    counts(f"{damage.__name__} (seed {SEED})", damaged_files=lost)


def use_everything(client: Client) -> None:
    """Send every kind of request that can read stored records. None may fail with an error of the disk."""
    server = client.server
    for name in TOPICS:
        waiting(lambda name=name: server.engine.expire_and_get(name, touch=False))  # type: ignore[misc]
        server.walk(name)
        server.done(server.engine.consumers.put(name, "c", ConsumerRequest(seq=1)))
        client.append(name, 1, tag="t")
        match = TagMatch("Eq", "t")
        preview = partial(server.engine.delete_records, name, before_seq=None, match=match, dry_run=True)
        waiting(lambda preview=preview: run_all(preview()))  # type: ignore[misc]
        client.delete(name, tag="t")
    server.listing()
    client.checkpoint()


@pytest.mark.parametrize("cold_folder", [False, True])
def test_file_that_disappears_while_the_server_runs_is_reported(cold_folder: bool) -> None:
    paths = [path for path in files(filled(cold_folder=cold_folder).server.disk) if path.endswith(".seg")]
    for path in paths:
        client = filled(cold_folder=cold_folder, cold_cache=True)
        client.server = client.server.crash("keep")  # no file is open yet
        client.server.disk.unlink(path)
        try:
            use_everything(client)
            check_damaged(client, client.server)
        except BaseException as error:
            error.add_note(f"seed {SEED}, {path}")
            raise
