"""Segment files: everything comes back, and no flipped bit goes unnoticed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import Corrupt
from topics.model.records import TagMatch
from topics.storage.segments import codec
from topics.storage.segments.columns import Columns, extend

maybe_name = st.none() | st.sampled_from(["", "a", "b", "é"])
rows = st.lists(
    st.tuples(st.integers(1, 40), maybe_name, maybe_name, st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=20
)


def build(found, first: int = 50):
    columns, ts = Columns(first), 1_000
    for size, tag, node, meta, later in found:
        ts += later
        extend(columns, ts=ts, sizes=[size], tags=[tag], nodes=[node], metas=[meta])
    return columns, bytes(at % 251 for at in range(columns.offsets[-1]))


def whole(columns, rendered, marks=None) -> bytes:
    return b"".join(codec.encode(columns, rendered, marks, topic_id=3, epoch=77))


def footer_of(data: bytes) -> codec.Footer:
    return codec.decode_footer(data[-codec.FOOTER_BYTES :], path="f", file_bytes=len(data))


def index_of(data: bytes, footer: codec.Footer):
    return codec.decode_index(data[footer.sums_at : footer.flags_at], footer, path="f")


@given(rows, st.booleans())
def test_what_is_written_is_what_is_read(found, with_extras):
    columns, rendered = build(found)
    if with_extras:
        columns.extras = {0: b"extra"}
    data = whole(columns, rendered)
    footer = footer_of(data)
    assert (footer.topic_id, footer.epoch, footer.first, footer.count) == (3, 77, 50, len(found))
    assert (footer.min_ts, footer.max_ts, footer.file_bytes) == (columns.ts[0], columns.ts[-1], len(data))
    assert data[codec.HEADER_BYTES : footer.sums_at] == rendered
    _, again = index_of(data, footer)
    assert (list(again.offsets), list(again.ts), again.extras) == (
        list(columns.offsets),
        list(columns.ts),
        columns.extras,
    )
    assert [again.tag_at(at) for at in range(len(found))] == [row[1] for row in found]
    assert [again.node_at(at) for at in range(len(found))] == [row[2] for row in found]
    assert list(again.metas) == [row[3] for row in found]
    for match in (TagMatch("Eq", "a"), TagMatch("Glob", ""), TagMatch("Glob", "é")):
        assert again.matching(match, 0, len(found)).tolist() == columns.matching(match, 0, len(found)).tolist()


def test_columns_that_no_record_needs_are_not_there():
    columns = Columns(1)
    extend(columns, ts=5, sizes=[4, 4], tags=None, nodes=None, metas=None)
    data = whole(columns, b"12345678")
    footer = footer_of(data)
    _, again = index_of(data, footer)
    assert (again.tags, again.nodes, again.metas, footer.sections) == (None, None, None, 0b11)


def test_marks_are_flags_on_disk_that_no_single_bit_turns_into_each_other():
    columns, rendered = build([(3, None, None, 0, 0)] * 4)
    data = whole(columns, rendered, bytearray([0, 1, 2, 0]))
    footer = footer_of(data)
    flags = data[footer.flags_at : footer.flags_at + 4]
    assert flags == bytes([codec.LIVE, codec.DELETED, codec.LOST, codec.LIVE])
    assert codec.decode_flags(flags) == bytearray([0, 1, 2, 0])
    assert codec.damaged_flags(flags) == []
    for one in (codec.LIVE, codec.DELETED, codec.LOST):
        for bit in range(8):
            assert one ^ 1 << bit not in (codec.LIVE, codec.DELETED, codec.LOST)
            assert codec.damaged_flags(bytes([codec.LIVE, one ^ 1 << bit])) == [1]


def test_marks_of_a_segment_in_which_everything_lives_are_none():
    assert codec.decode_flags(bytes([codec.LIVE]) * 5) is None


def test_a_flag_that_nobody_wrote_counts_as_lost():
    assert codec.decode_flags(bytes([codec.LIVE, 0])) == bytearray([0, 2])


def test_any_single_flipped_bit_is_noticed():
    columns, rendered = build([(9, "a", "n", 2, 1), (9, None, "m", 0, 1), (9, "b", None, 0, 0)])
    data = whole(columns, rendered)
    good = footer_of(data)
    for bit in range(len(codec.MAGIC) * 8, len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert is_noticed(bytes(damaged), good), bit


def is_noticed(data: bytes, good: codec.Footer) -> bool:
    try:
        footer = footer_of(data)
        sums, _ = index_of(data, footer)
    except Corrupt:
        return True
    assert footer == good
    chunk = data[codec.HEADER_BYTES : footer.sums_at]
    return codec.sum64(chunk) != sums[0] or bool(
        codec.damaged_flags(data[footer.flags_at : footer.flags_at + footer.count])
    )


@pytest.mark.parametrize("cut", [1, 8, codec.FOOTER_BYTES, codec.FOOTER_BYTES + 3])
def test_a_file_cut_short_is_corrupt(cut):
    columns, rendered = build([(9, "a", "n", 2, 1)])
    data = whole(columns, rendered)
    with pytest.raises(Corrupt):
        footer_of(data[:-cut])
    with pytest.raises(Corrupt):
        footer_of(data + bytes(8))


def test_a_footer_does_not_speak_for_a_file_of_another_size():
    columns, rendered = build([(9, "a", "n", 2, 1)])
    data = whole(columns, rendered)
    with pytest.raises(Corrupt, match="bytes where its footer says"):
        codec.decode_footer(data[-codec.FOOTER_BYTES :], path="f", file_bytes=len(data) + 1)


def test_every_chunk_of_the_data_has_a_sum_of_its_own():
    columns = Columns(1)
    size = codec.CHUNK_BYTES + 1
    extend(columns, ts=1, sizes=[size, size], tags=None, nodes=None, metas=None)
    data = whole(columns, bytes(2 * size))
    footer = footer_of(data)
    sums, _ = index_of(data, footer)
    assert (footer.chunks, len(sums)) == (3, 3)
    assert sums[0] == sums[1] == codec.sum64(bytes(codec.CHUNK_BYTES))
    assert sums[2] == codec.sum64(bytes(2))
