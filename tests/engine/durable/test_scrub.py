"""Scrub: damage is found before a reader meets it, and files that change or go meanwhile are no damage."""

from __future__ import annotations

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import DeferredWorker, SimServer
from topics.engine.durable.scrub import Scrub

HOUR_MS = 3_600_000


def scrub_of(server: SimServer) -> Scrub:
    return Scrub(server.store, server.clock, HOUR_MS)


def scrub_round(server: SimServer, scrub: Scrub) -> None:
    """Let a whole round pass: the first call of `tick` only begins one."""
    rounds = scrub.rounds_total
    for _ in range(200):
        scrub.tick()
        server.clock.advance(ms=HOUR_MS)
        if scrub.rounds_total > rounds:
            return
    raise AssertionError("the round does not end")


def written(**options: object) -> SimServer:
    """Return a server with three sealed segments and a tail, all in a snapshot."""
    server = SimServer.start(SimDisk(seed=3), **options)
    server.append("t", *(f'"{n}"' for n in range(3)), durability="fsync")
    server.append("t", *(f'"{n}"' for n in range(3, 6)))
    server.append("t", *(f'"{n}"' for n in range(6, 9)))
    server.append("t", '"tail"')
    server.checkpoint()
    return server


def file_of(server: SimServer, suffix: str) -> str:
    return next(path for path in sorted(server.disk.files()) if path.endswith(suffix))


def test_whole_directory_is_clean():
    server = written()
    scrub = scrub_of(server)
    scrub_round(server, scrub)
    assert not scrub.damage()
    assert scrub.bytes_total > 0


def test_damage_is_reported_once_and_costs_no_reader_a_record(caplog: pytest.LogCaptureFixture):
    server = written()
    scrub, path = scrub_of(server), file_of(server, ".seg")
    server.disk.flip(path, 8 * 20)
    scrub_round(server, scrub)
    scrub_round(server, scrub)
    [found] = scrub.damage()
    assert (found.path, found.seqs) == (path, (1, 3))
    assert len([one for one in caplog.records if one.message == "damage_found"]) == 1
    assert server.engine.topic("t").losses.total == 0
    server.disk.flip(path, 8 * 20)  # repaired
    scrub_round(server, scrub)
    assert not scrub.damage()
    assert len(server.data("t")) == 10


@pytest.mark.parametrize(("suffix", "seqs"), [(".tails", (10, 10)), (".snap", None)])
def test_damage_outside_of_segments_is_found(suffix: str, seqs: tuple[int, int] | None):
    server = written()
    scrub = scrub_of(server)
    server.disk.flip(file_of(server, suffix), 8 * 30)
    scrub_round(server, scrub)
    assert [one.seqs for one in scrub.damage()] == [seqs]


def test_damage_of_a_snapshot_ends_with_the_next_snapshot():
    server = written()
    scrub = scrub_of(server)
    server.disk.flip(file_of(server, ".snap"), 8 * 30)
    scrub_round(server, scrub)
    assert scrub.damage()
    server.append("t", '"more"')
    server.checkpoint()
    assert not scrub.damage()


def test_missing_segment_is_found_before_it_is_read():
    server = written()
    scrub = scrub_of(server)
    server.disk.unlink(file_of(server, ".seg"))
    scrub_round(server, scrub)
    [found] = scrub.damage()
    assert (found.what, found.seqs) == ("the file is missing", (1, 3))


@pytest.mark.parametrize("change", ["delete", "drop", "seal", "checkpoint"])
def test_file_that_goes_while_it_waits_to_be_read_is_no_damage(change: str):
    worker = DeferredWorker()
    server = written(store_worker=worker)
    worker.run_all()
    scrub = scrub_of(server)
    scrub.tick()
    worker.run_all()
    server.clock.advance(ms=HOUR_MS)
    scrub.tick()  # the batch waits on the worker
    assert len(worker) == 1
    if change == "delete":
        server.delete("t", before_seq=5)
    elif change == "drop":
        server.drop("t")
    elif change == "seal":
        server.append("t", '"10"', '"11"', '"12"')
    # The files of a checkpoint go on the same thread, so the batch is read before: remove them by hand here.
    server.store.checkpoint()
    for path in [path for path in server.disk.files() if path.endswith(".seg")] if change == "drop" else ():
        server.disk.unlink(path)
    worker.run_all()
    assert not scrub.damage()
    scrub_rounds = scrub.rounds_total
    for _ in range(6):
        server.clock.advance(ms=HOUR_MS)
        scrub.tick()
        worker.run_all()
    assert scrub.rounds_total > scrub_rounds
    assert not scrub.damage()


def test_segment_that_moves_to_the_cold_folder_is_checked_there():
    server = written(cold_dir="/cold", hot_segments=1)
    scrub = scrub_of(server)
    server.append("t", '"more"')
    server.checkpoint()
    path = next(path for path in server.disk.files() if path.startswith("/cold/") and path.endswith(".seg"))
    server.disk.flip(path, 8 * 20)
    scrub_round(server, scrub)
    assert [one.path for one in scrub.damage()] == [path]


def test_scrub_keeps_to_its_rate():
    server = written()
    scrub = scrub_of(server)
    scrub.tick()
    read = []
    for _ in range(1000):
        server.clock.advance(ms=HOUR_MS // 1000)
        scrub.tick()
        read.append(scrub.bytes_total)
    assert read[5] == 0
    assert read[-1] == sum(len(server.disk.contents(path)) for path in server.disk.files() if path.endswith(".seg")) + (
        server.engine.topic("t").saved_tail.ref.size
    )
