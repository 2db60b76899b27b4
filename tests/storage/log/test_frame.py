"""WAL frames: what is written is what is read, and a frame that is not whole is never taken for one."""

from hypothesis import given
from hypothesis import strategies as st

from topics.storage.log import frame

HEAD = frame.Head(kind=4, topic_id=7, first=1_000, count=3)
FRAME = frame.encode(*HEAD, b"the body")

heads = st.builds(
    frame.Head, st.integers(0, 127), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1)
)


@given(st.lists(st.tuples(heads, st.binary(max_size=200), st.booleans()), max_size=5))
def test_frames_one_after_the_other_come_back_in_order(parts):
    frames = [frame.encode(head.kind | frame.MORE * more, *head[1:], body) for head, body, more in parts]
    buf = memoryview(b"".join(frames))
    at, found = 0, []
    while at < len(buf):
        got, at = frame.decode(buf, at)
        found.append((got.head, bytes(got.body), got.more))
    assert found == parts


def test_a_frame_costs_what_the_format_says():
    assert len(FRAME) == len(b"the body") + frame.OVERHEAD_BYTES


def test_any_single_flipped_bit_is_noticed():
    for bit in range(len(FRAME) * 8):
        damaged = bytearray(FRAME)
        damaged[bit // 8] ^= 1 << bit % 8
        assert frame.decode(memoryview(bytes(damaged)), 0) is None, bit


def test_a_frame_cut_short_anywhere_is_none():
    for size in range(len(FRAME)):
        assert frame.decode(memoryview(FRAME[:size]), 0) is None
        assert frame.decode(memoryview(FRAME[:size].ljust(len(FRAME), b"\0")), 0) is None


def test_zeros_are_no_frame():
    assert frame.decode(memoryview(bytes(4096)), 0) is None
    assert frame.find(bytes(4096), 0) == -1


def test_the_beginning_tells_which_seqs_a_frame_with_a_damaged_body_held():
    damaged = bytearray(FRAME)
    damaged[frame.BODY_AT] ^= 1
    assert frame.decode(memoryview(damaged), 0) is None
    assert frame.peek(memoryview(damaged), 0) == (HEAD, len(FRAME))


def test_a_damaged_beginning_is_not_believed():
    for at in range(frame.BODY_AT):
        damaged = bytearray(FRAME)
        damaged[at] ^= 0x10
        assert frame.peek(memoryview(damaged), 0) is None, at


def test_the_end_tells_the_same_when_the_beginning_is_damaged():
    damaged = bytes(frame.BODY_AT) + FRAME[frame.BODY_AT :]
    assert frame.trailing_head(memoryview(damaged), len(damaged)) == HEAD
    assert frame.head_by_end(memoryview(damaged), 0, len(damaged)) == HEAD


def test_the_end_is_not_believed_where_more_than_the_beginning_is_damaged():
    for at in range(frame.BODY_AT, len(FRAME) - 1):
        damaged = bytearray(bytes(frame.BODY_AT) + FRAME[frame.BODY_AT :])
        damaged[at] ^= 1
        assert frame.head_by_end(memoryview(damaged), 0, len(damaged)) is None, at
    assert frame.head_by_end(memoryview(FRAME), 0, frame.OVERHEAD_BYTES - 1) is None
    assert frame.trailing_head(memoryview(b"short"), 5) is None


def test_the_next_whole_frame_is_found_behind_damage():
    damaged = bytearray(FRAME * 3)
    damaged[frame.BODY_AT] ^= 1
    assert frame.find(bytes(damaged), 0) == len(FRAME)
    assert frame.find(b"noise" + frame.MAGIC + FRAME, 0) == 9
    assert frame.find(bytes(damaged), 2 * len(FRAME) + 1) == -1


def test_a_frame_inside_the_body_of_a_damaged_one_is_found_only_where_it_begins():
    outer = frame.encode(*HEAD, b"x" + FRAME)
    assert frame.find(outer, 0) == 0
    assert frame.find(outer, 1) == frame.BODY_AT + 1


@given(heads, st.lists(st.binary(max_size=100), min_size=1, max_size=3), st.binary(max_size=20))
def test_a_large_frame_has_the_bytes_of_any_frame(head, body, pin):
    before, mark = frame.encode(1, 2, 3, 4, pin), frame.encode(5, 6, 7, 8, b"mark")
    large = mark + frame.LargeFrame(*head, *map(memoryview, body), after=before)
    large.seal()
    whole = mark + frame.encode(*head, *body, after=before)
    assert b"".join(frame.parts_of([FRAME, large, FRAME])) == FRAME + whole + FRAME
    assert len(large) == len(whole)
