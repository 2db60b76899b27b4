"""What is fetched for a read stays findable until the read has ended, and takes a bounded amount of memory."""

from __future__ import annotations

import gc
import threading

import pytest

from tests.storage.segments.test_segment import ROWS, Disk, memory
from topics.storage.segments import cold as bounds
from topics.storage.segments.cold import Cold, Hold, Need, Needs, waiting
from topics.storage.segments.sealed import SealedSegment


class Thing:
    """Something to fetch; `alive` counts how many there are in memory."""

    alive = 0

    def __init__(self) -> None:
        Thing.alive += 1

    def __del__(self) -> None:
        Thing.alive -= 1


def need(name: str, size_bytes: int = 1, fetched: list[str] | None = None) -> Need:
    def load() -> Thing:
        if fetched is not None:
            fetched.append(name)
        return Thing()

    return Need(name, size_bytes, load=load, trim=lambda: None)


@pytest.fixture(autouse=True)
def nothing_left():
    gc.collect()
    Thing.alive = 0
    yield
    gc.collect()
    assert Thing.alive == 0


def cold_of(segment: SealedSegment, low: int, high: int) -> Cold:
    with pytest.raises(Cold) as caught:
        segment.read(low, high)
    return caught.value


def test_hold_keeps_columns_that_the_cache_has_given_up():
    disk = Disk(memory(), cold=True, columns_bytes=1)
    first, second, hold = disk.reopened(), disk.reopened(), Hold()
    hold.load(cold_of(first, 0, 1))
    hold.load(cold_of(first, 0, 1))
    waiting(lambda: second.read(0, 1))
    assert first.loaded is None, "others needed the room"
    assert first.read(0, 1) == ROWS[0]
    hold.release()
    cold_of(first, 0, 1)


def test_two_holds_of_the_same_bytes_fetch_them_once():
    disk = Disk(memory(), cold=True)
    segment, one, two = disk.reopened(), Hold(), Hold()
    waiting(lambda: segment.columns)
    asked = cold_of(segment, 0, 3)
    one.load(asked)
    before = len(disk.fs.calls)
    two.load(asked)
    assert "pread" not in [call.op for call in disk.fs.calls[before:]]
    one.release()
    assert segment.read(0, 3) == b"".join(ROWS[:3]), "the other one still holds them"
    two.release()
    cold_of(segment, 0, 3)


def test_look_is_kept_and_the_columns_are_not():
    disk = Disk(memory([b"%070000d," % n for n in range(3)]), cold=True, columns_bytes=1)
    segment, other, hold = disk.reopened(), disk.reopened(), Hold()
    with pytest.raises(Cold) as caught:
        segment.look("count", lambda columns, marks: len(columns))
    hold.load(caught.value)
    waiting(lambda: other.columns)
    assert segment.look("count", lambda columns, marks: pytest.fail("computed again")) == 3
    assert segment.resident is None
    assert hold.size_bytes < segment._index_bytes


def test_load_of_a_segment_that_is_released_meanwhile_is_no_failure():
    disk = Disk(memory(), cold=True)
    segment, hold = disk.reopened(), Hold()
    asked = cold_of(segment, 0, 1)
    segment.release()
    disk.fs.unlink(segment.path)
    hold.load(asked)
    assert hold.size_bytes == 0


def test_flags_read_late_do_not_undo_a_mark():
    """Two threads load the same segment; between their ends a record is deleted."""
    was = memory()
    was.mark([0], 1)
    disk = Disk(was)
    segment = disk.reopened()
    flags = segment._open().pread(segment.count, segment.footer.flags_at)
    waiting(lambda: segment.marks)
    segment.mark([4], 1)
    segment._learn_marks(flags)
    assert bytes(segment.marks or b"") == bytes([1, 0, 0, 0, 1, 0])


def test_damage_that_a_load_finds_is_reported_by_the_next_read():
    disk = Disk(memory(), cold=True)
    segment, hold = disk.reopened(), Hold()
    disk.fs.flip(segment.path, (segment.footer.sums_at + 9) * 8)
    with pytest.raises(Cold) as caught:
        segment.look("count", lambda columns, marks: len(columns))
    hold.load(caught.value)
    with pytest.raises(Exception, match="index") as found:
        segment.look("count", lambda columns, marks: len(columns))
    assert found.value.whole  # type: ignore[attr-defined]


def test_hold_that_grows_past_its_bound_gives_up_what_it_fetched_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "HOLD_BYTES", 10)
    hold = Hold()
    for name in "abcde":
        hold.load(Cold([need(name, 4)]))
    assert (hold.size_bytes, Thing.alive) == (8, 2)
    hold.release()
    assert (hold.size_bytes, Thing.alive) == (0, 0)


def test_work_that_needs_more_than_the_bound_at_once_still_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "HOLD_BYTES", 10)
    fetched: list[str] = []
    hold = Hold()
    for name in "abcd" * 3:
        if (name,) not in [(key,) for key in hold._kept]:
            hold.load(Cold([need(name, 4, fetched)]))
    assert (hold.size_bytes, Thing.alive) == (16, 4)
    assert len(fetched) < 12
    hold.release()


def test_needs_stop_at_what_one_load_may_ask_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bounds, "LOAD_BYTES", 10)
    needs = Needs()
    needs.check()
    for name in "abcde":
        needs.add(Cold([need(name, 4)]))
    with pytest.raises(Cold) as caught:
        needs.check()
    assert ([one.key for one in caught.value.needs], caught.value.more) == (["a", "b", "c"], True)


def test_columns_are_given_up_on_the_thread_that_reads_only():
    disk = Disk(memory(), cold=True, columns_bytes=1)
    segments = [disk.reopened() for _ in range(4)]
    holds = []
    for segment in segments:
        with pytest.raises(Cold) as caught:
            segment.columns  # noqa: B018
        holds.append(Hold())
        thread = threading.Thread(target=holds[-1].load, args=(caught.value,))
        thread.start()
        thread.join()
    assert all(segment.loaded is not None for segment in segments)
    for hold in holds:
        hold.release()
    assert [segment.loaded is not None for segment in segments] == [False, False, False, True]
