"""Segments at run time: memory and file have the same content, marks count once, and no caller waits for the disk."""

import errno

import numpy as np
import pytest

from tests.simulated.disk import SimDisk
from topics.errors import Corrupt
from topics.storage.segments import codec
from topics.storage.segments.cold import Cold, Hold
from topics.storage.segments.columns import extend
from topics.storage.segments.marks import marked_positions, pack_marks
from topics.storage.segments.sealed import SealedSegment
from topics.storage.segments.segment import Damaged, MemorySegment
from topics.storage.segments.segment_caches import SegmentCaches

ROWS = [b'{"$seq":%d},' % seq for seq in range(10, 16)]
MANY_ROWS = [b"x" * (1 + at % 7) for at in range(200)]


def memory(rows=tuple(ROWS), first: int = 10) -> MemorySegment:
    segment = MemorySegment(first)
    for ts, row in enumerate(rows, 100):
        extend(segment.columns, ts=ts, sizes=[len(row)], tags=["t"], nodes=None, metas=None)
        segment.grew(row, 1, ts)
    return segment


class Disk:
    """A simulated disk with one sealed segment on it."""

    def __init__(self, was: MemorySegment, *, cold: bool = False, **caches: int) -> None:
        self.fs = SimDisk(cold=cold)
        self.caches = SegmentCaches(self.fs, **caches)
        self.fs.mkdir("/s")
        self.paths = 0
        self.was = was

    def write(self, was: MemorySegment) -> tuple[str, codec.Footer]:
        self.paths += 1
        path = f"/s/{self.paths}"
        data = b"".join(codec.encode(was.columns, was.rendered, was.marks, topic_id=1, epoch=1))
        self.fs.open(path, create=True).pwrite(data, 0)
        return path, codec.decode_footer(data[-codec.FOOTER_BYTES :], path=path, file_bytes=len(data))

    def adopted(self) -> SealedSegment:
        return SealedSegment.adopt(self.caches, *self.write(self.was), self.was)

    def reopened(self, **known) -> SealedSegment:
        path, footer = self.write(self.was)
        return SealedSegment(self.caches, path, footer, live=self.was.live, live_bytes=self.was.live_bytes, **known)


def waiting(act):
    hold = Hold()
    for _ in range(10):
        try:
            return act()
        except Cold as cold:
            hold.load(cold)
    raise AssertionError("never warm")


@pytest.fixture(params=["memory", "adopted", "reopened", "reopened cold"])
def segment(request):
    was = memory()
    disk = Disk(was, cold=request.param == "reopened cold")
    made = {"memory": lambda: was, "adopted": disk.adopted}.get(request.param, disk.reopened)()
    waiting(lambda: made.columns)
    return made


def test_a_segment_knows_where_it_lies_and_what_it_holds(segment):
    assert (segment.first, segment.count, segment.end, segment.live) == (10, 6, 16, 6)
    assert (segment.live_bytes, segment.min_ts, segment.max_ts) == (sum(map(len, ROWS)), 100, 105)
    assert segment.marks is None
    assert waiting(lambda: segment.read(0, 6)) == b"".join(ROWS)
    assert waiting(lambda: segment.read(2, 3)) == ROWS[2]
    assert waiting(lambda: segment.read(3, 3)) == b""


def test_a_mark_counts_once(segment):
    assert segment.mark([1, 3, 3], 1) == (2, 2 * len(ROWS[0]))
    assert segment.mark([3], 2) == (0, 0)
    assert (segment.live, segment.live_bytes, bytes(segment.marks)) == (4, 4 * len(ROWS[0]), bytes([0, 1, 0, 1, 0, 0]))


def test_what_is_live_is_counted_and_found(segment):
    assert (segment.first_live(2), segment.live_positions(2, 4).tolist()) == (2, [2, 3])
    assert segment.live_within(1, 4) == (3, 3 * len(ROWS[0]))
    segment.mark([2, 3], 1)
    assert (segment.first_live(2), segment.live_positions(1, 6).tolist()) == (4, [1, 4, 5])
    assert segment.live_within(1, 4) == (1, len(ROWS[0]))
    segment.mark(range(6), 1)
    assert segment.first_live(0) == segment.count


def test_a_marked_segment_that_grows_has_live_records_at_its_end():
    segment = memory()
    segment.mark([0], 1)
    extend(segment.columns, ts=200, sizes=[5], tags=None, nodes=None, metas=None)
    segment.grew(b"12345", 1, 200)
    assert bytes(segment.marks) == bytes([1, 0, 0, 0, 0, 0, 0])
    assert segment.live_positions(0, 7).tolist() == [1, 2, 3, 4, 5, 6]


def test_a_segment_in_memory_can_be_written_and_read_back_to_grow_on():
    was = memory()
    was.mark([2], 1)
    data = b"".join(codec.encode(was.columns, was.rendered, was.marks, topic_id=1, epoch=1))
    again = MemorySegment.from_bytes(data, path="f", opened_ms=7)
    assert (again.first, again.count, again.live, again.live_bytes) == (was.first, was.count, was.live, was.live_bytes)
    extend(again.columns, ts=200, sizes=[5], tags=["new"], nodes=None, metas=None)
    again.grew(b"12345", 1, 200)
    assert again.read(5, 7) == ROWS[5] + b"12345"
    damaged = bytearray(data)
    damaged[codec.HEADER_BYTES] ^= 1
    with pytest.raises(Corrupt):
        MemorySegment.from_bytes(bytes(damaged), path="f", opened_ms=7)


def test_marks_made_before_sealing_come_along_and_those_after_are_written_through():
    was = memory()
    was.mark([0], 1)
    disk = Disk(was)
    sealed = disk.adopted()
    sealed.mark([4], 2)
    packed = sealed.unsaved_marks()
    assert marked_positions(packed).tolist() == [0, 4]
    sealed.save_marks(packed)()
    sealed.saved(packed)
    assert sealed.unsaved_marks() == b""
    data = disk.fs.contents(sealed.path)
    flags = data[sealed.footer.flags_at : sealed.footer.flags_at + 6]
    assert codec.decode_flags(flags) == bytearray([1, 0, 0, 0, 2, 0])


def test_marks_that_a_snapshot_knows_and_the_file_lacks_are_kept():
    disk = Disk(memory())
    pending = pack_marks(bytes([0, 1, 0, 0, 0, 2]), np.array([1, 5]))
    sealed = disk.reopened(pending=pending)
    assert bytes(waiting(lambda: sealed.marks)) == bytes([0, 1, 0, 0, 0, 2])
    assert sealed.unsaved_marks() == pending


def test_marks_made_after_a_save_began_are_not_written_with_it():
    was = memory(MANY_ROWS)
    disk = Disk(was)
    sealed = disk.adopted()
    sealed.mark(range(0, 160, 2), 1)  # more runs than are written one by one
    packed = sealed.unsaved_marks()
    sealed.mark([1, 7], 2)
    save = sealed.save_marks(packed)
    sealed.mark([199], 2)
    save()
    sealed.saved(packed)
    flags = disk.fs.contents(sealed.path)[sealed.footer.flags_at :][:200]
    assert codec.decode_flags(flags) == bytearray(b"\1\0" * 80 + b"\0" * 40)
    assert marked_positions(sealed.unsaved_marks()).tolist() == [1, 7, 199]


@pytest.mark.parametrize("value", [1, 2])
def test_many_records_are_marked_like_few(value: int):
    many, few = memory(MANY_ROWS), memory(MANY_ROWS)
    for segment in (many, few):
        segment.mark([3, 5], 1)
    positions = [*range(0, 200, 3), 3, 9]
    gone = [few.mark([at], value) for at in positions]
    assert many.mark(positions, value) == tuple(map(sum, zip(*gone, strict=True)))
    assert (many.marks, many.live, many.live_bytes) == (few.marks, few.live, few.live_bytes)


def test_a_cold_segment_says_what_to_load_instead_of_waiting():
    sealed, hold = Disk(memory(), cold=True).reopened(), Hold()
    with pytest.raises(Cold) as caught:
        sealed.read(0, 2)
    hold.load(caught.value)
    with pytest.raises(Cold) as caught:
        sealed.read(0, 2)
    hold.load(caught.value)
    assert sealed.read(0, 2) == ROWS[0] + ROWS[1]


def test_two_pieces_of_a_cold_segment_do_not_push_each_other_out():
    sealed = Disk(memory(), cold=True).reopened()
    assert waiting(lambda: [sealed.read(0, 1), sealed.read(2, 3), sealed.read(5, 6)]) == [ROWS[0], ROWS[2], ROWS[5]]


def test_columns_are_given_up_for_others_and_loaded_again():
    disk = Disk(memory(), columns_bytes=1)
    first, second = disk.reopened(), disk.reopened()
    assert (len(first.columns), len(second.columns)) == (6, 6)
    before = len(disk.fs.calls)
    assert len(first.columns) == 6
    assert len(disk.fs.calls) > before, "it had to be read again"


def test_marks_outlive_the_columns():
    disk = Disk(memory(), columns_bytes=1)
    first, second = disk.reopened(), disk.reopened()
    first.mark([3], 1)
    assert second.read(0, 1) == ROWS[0]
    assert bytes(first.marks) == bytes([0, 0, 0, 1, 0, 0])


def test_no_more_files_are_open_than_allowed():
    disk = Disk(memory(), open_files=2)
    for sealed in [disk.reopened() for _ in range(5)]:
        assert sealed.read(0, 1) == ROWS[0]
    assert len(disk.caches._files) == 2


def test_a_released_segment_gives_everything_back():
    disk = Disk(memory(), cold=True)
    sealed = disk.reopened()
    waiting(lambda: sealed.read(0, 6))
    sealed.release()
    assert (disk.caches._held_bytes, disk.caches.retired) == (0, [sealed.path])


@pytest.mark.parametrize("cold", [False, True])
def test_damaged_data_is_found_with_the_records_it_hits(cold):
    big = [b"%07d," % at * 1250 for at in range(30)]  # 10,000 bytes each: seven a chunk
    disk = Disk(memory(big), cold=cold)
    sealed = disk.reopened()
    disk.fs.flip(sealed.path, (codec.HEADER_BYTES + codec.CHUNK_BYTES + 5) * 8)
    assert waiting(lambda: sealed.read(0, 6)) == b"".join(big[:6])
    with pytest.raises(Damaged) as caught:
        waiting(lambda: sealed.read(8, 9))
    damage = caught.value
    assert (damage.low, damage.high, damage.whole) == (6, 14, False)
    assert damage.low * 10_000 <= codec.CHUNK_BYTES < 2 * codec.CHUNK_BYTES <= damage.high * 10_000
    assert waiting(lambda: sealed.read(14, 30)) == b"".join(big[14:])


@pytest.mark.parametrize("cold", [False, True])
def test_new_period_checks_data_again(cold):
    big = [b"%07d," % at * 1250 for at in range(30)]
    disk = Disk(memory(big), cold=cold)
    sealed = disk.reopened()
    assert waiting(lambda: sealed.read(0, 30)) == b"".join(big)
    disk.fs.flip(sealed.path, (codec.HEADER_BYTES + codec.CHUNK_BYTES + 5) * 8)
    disk.caches.period += 1
    assert waiting(lambda: sealed.read(0, 6)) == b"".join(big[:6])
    with pytest.raises(Damaged) as caught:
        waiting(lambda: sealed.lend(8, 9))
    assert (caught.value.low, caught.value.high) == (6, 14)


@pytest.mark.parametrize("cold", [False, True])
def test_a_damaged_index_takes_the_whole_segment(cold):
    disk = Disk(memory(), cold=cold)
    sealed = disk.reopened()
    disk.fs.flip(sealed.path, (sealed.footer.sums_at + 9) * 8)
    for _ in range(2):
        with pytest.raises(Damaged) as caught:
            waiting(lambda: sealed.columns)
        assert (caught.value.low, caught.value.high, caught.value.whole) == (0, 6, True)


@pytest.mark.parametrize("cold", [False, True])
def test_a_missing_file_takes_the_whole_segment(cold):
    disk = Disk(memory(), cold=cold)
    sealed = disk.reopened()
    disk.fs.unlink(sealed.path)
    with pytest.raises(Damaged) as caught:
        waiting(lambda: sealed.read(0, 1))
    assert caught.value.whole


def test_a_file_that_moves_is_found_where_it_went():
    disk = Disk(memory())
    sealed = disk.reopened()
    assert sealed.read(0, 1) == ROWS[0]
    disk.fs.rename(sealed.path, "/s/moved")
    disk.caches.forget(sealed, moved_to="/s/moved")
    assert sealed.read(1, 2) == ROWS[1]


def test_a_cache_without_descriptors_closes_its_files_and_opens_again():
    disk = Disk(memory())
    first, second, third = disk.reopened(), disk.reopened(), disk.reopened()
    assert waiting(lambda: first.read(0, 6)) == b"".join(ROWS)
    disk.fs.fail(error=errno.EMFILE, op="open")
    assert waiting(lambda: second.read(0, 6)) == b"".join(ROWS)
    disk.fs.fail(error=errno.EMFILE, op="open", times=4)  # without a wait, and with one
    with pytest.raises(OSError, match="open files"):
        waiting(lambda: third.read(0, 6))


def test_segment_whose_columns_are_freed_keeps_nothing_that_follows_from_them():
    disk = Disk(memory(), columns_bytes=1)
    first, second = disk.reopened(), disk.reopened()
    first.mark([1, 3], 1)
    before = waiting(first.holes)
    assert first.holes()[1] is before[1]
    waiting(lambda: second.read(0, 1))
    disk.caches.trim()
    after = waiting(first.holes)
    assert after == before
    assert after[1] is not before[1]
