"""One page at a time: where a read starts, what it skips, where it stops, and what it says about the rest."""

from random import Random

import pytest

from tests.engine.harness import Sealer, append, delete, objects, open_engine, put, read, record, seqs
from tests.simulated.clock import SimClock
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.read.read import Query
from topics.engine.state.topics import SegmentLimits
from topics.errors import Code, TopicsError
from topics.model.records import Projection, TagMatch
from topics.storage.segments.cold import Cold, Hold

RECORD_BYTES = len(b'{"$seq":1,"$ts":100,"data":1},')


def topic_of(n: int, *, sealed: bool = False, cold: bool = False):
    """Topic "a" with records 1 to n, one a millisecond from 100 on, even ones from node "even"; four a segment."""
    clock = SimClock(ms=100)
    engine = open_engine(clock)
    for seq in range(1, n + 1):
        append(engine, "a", record(tag=f"t{seq}", node="even" if seq % 2 == 0 else None))
        clock.advance(ms=1)
    if sealed:
        Sealer(SimDisk(cold=cold)).seal(engine.topic("a"))
    return engine


@pytest.fixture(params=["memory", "files", "cold files"])
def ten(request):
    return topic_of(10, sealed=request.param != "memory", cold=request.param == "cold files")


def test_read_begins_after_its_cursor_and_returns_the_next(ten):
    page = read(ten, "a", from_seq=3, limit=4)
    assert (seqs(page), page.next_from_seq, page.scanned, page.tombstone) == ([4, 5, 6, 7], 7, 4, None)


def test_a_read_at_the_head_finds_nothing(ten):
    page = read(ten, "a", from_seq=10)
    assert (page.parts, page.next_from_seq, page.scanned, page.tombstone) == ([], 10, 0, None)


def test_records_of_the_reader_s_own_nodes_are_skipped_and_passed(ten):
    page = read(ten, "a", nodes=frozenset({"even"}), limit=3)
    assert (seqs(page), page.next_from_seq, page.scanned) == ([1, 3, 5], 5, 5)
    rest = read(ten, "a", nodes=frozenset({"even", "nobody"}), from_seq=page.next_from_seq)
    assert (seqs(rest), rest.next_from_seq) == ([7, 9], 10)


def test_read_stops_at_its_limit_wherever_the_segment_ends(ten):
    for from_seq in (0, 2, 4, 6):
        page = read(ten, "a", nodes=frozenset({"even"}), from_seq=from_seq, limit=1)
        assert (seqs(page), page.next_from_seq) == ([from_seq + 1], from_seq + 1)


def test_a_page_of_skipped_records_alone_still_moves_the_cursor():
    engine = open_engine()
    append(engine, "a", *[record(node="me")] * 9)
    page = read(engine, "a", nodes=frozenset({"me"}), from_seq=2)
    assert (page.count, page.next_from_seq, page.scanned) == (0, 9, 7)


def test_a_topic_may_opt_out_of_node_filtering(ten):
    put(ten, "a", dedupe_node=False)
    assert seqs(read(ten, "a", nodes=frozenset({"even"}))) == list(range(1, 11))


def test_a_filter_keeps_matching_tags_only(ten):
    assert seqs(read(ten, "a", match=TagMatch("Eq", "t7"))) == [7]
    assert seqs(read(ten, "a", match=TagMatch("Glob", "t1"))) == [1, 10]
    assert seqs(read(ten, "a", match=TagMatch("Glob", ""), nodes=frozenset({"even"}))) == [1, 3, 5, 7, 9]
    nothing = read(ten, "a", match=TagMatch("Eq", "other"))
    assert (nothing.count, nothing.next_from_seq) == (0, 10)


@pytest.mark.parametrize(
    ("max_bytes", "expected"),
    [
        (1, [1]),
        (RECORD_BYTES, [1]),
        (2 * RECORD_BYTES - 1, [1]),
        (2 * RECORD_BYTES, [1, 3]),
        (3 * RECORD_BYTES + 1, [1, 3, 5]),
    ],
)
def test_byte_budget_never_ends_a_page_before_its_first_record(ten, max_bytes, expected):
    page = read(ten, "a", max_bytes=max_bytes, nodes=frozenset({"even"}))
    assert seqs(page) == expected


def test_byte_budget_spent_exactly_ends_the_page(ten):
    page = read(ten, "a", max_bytes=RECORD_BYTES, nodes=frozenset({"even"}))
    assert (seqs(page), page.next_from_seq) == ([1], 1)


def test_first_record_is_delivered_even_past_the_byte_budget(ten):
    page = read(ten, "a", max_bytes=1, match=TagMatch("Eq", "t6"))
    assert (seqs(page), page.next_from_seq) == ([6], 6)


def test_a_read_examines_no_more_seqs_than_it_may(ten):
    page = read(ten, "a", examine=6, match=TagMatch("Eq", "t9"))
    assert (page.count, page.next_from_seq, page.scanned) == (0, 6, 6)
    assert seqs(read(ten, "a", from_seq=page.next_from_seq, examine=6, match=TagMatch("Eq", "t9"))) == [9]


def test_ten_thousand_seqs_are_examined_at_most():
    engine = open_engine()
    append(engine, "a", *[record(node="me")] * 10_000)
    append(engine, "a", record(node="me"), record())
    page = read(engine, "a", nodes=frozenset({"me"}))
    assert (page.count, page.next_from_seq, page.scanned) == (0, 10_000, 10_000)
    assert seqs(read(engine, "a", nodes=frozenset({"me"}), from_seq=10_000)) == [10_002]


def test_a_reader_may_be_kept_below_the_head(ten):
    page = read(ten, "a", from_seq=4, upto=6)
    assert (seqs(page), page.next_from_seq) == ([5, 6], 6)
    assert read(ten, "a", from_seq=6, upto=6).next_from_seq == 6


def test_a_read_by_time_begins_with_the_first_record_committed_then(ten):
    assert seqs(read(ten, "a", from_ts=0)) == list(range(1, 11))
    assert seqs(read(ten, "a", from_ts=105)) == [6, 7, 8, 9, 10]
    assert seqs(read(ten, "a", from_ts=105, from_seq=8)) == [9, 10]
    late = read(ten, "a", from_ts=110)
    assert (late.count, late.next_from_seq) == (0, 10)


def test_cursor_beyond_the_head_is_of_an_earlier_epoch(ten):
    page = read(ten, "a", from_seq=11, limit=2)
    gap = page.tombstone
    assert (gap.gap_from, gap.gap_to, gap.reason, gap.head_seq) == (1, 10, "recreated", 10)
    assert seqs(page) == [1, 2]


def test_another_epoch_says_so_whatever_the_cursor():
    engine = topic_of(2)
    was = engine.topic("a").epoch
    engine.drop_topic("a")
    append(engine, "a", record(), record(), record())
    assert engine.topic("a").epoch > was
    assert read(engine, "a", from_seq=2).tombstone is None
    page = read(engine, "a", from_seq=2, epoch=was)
    assert (page.tombstone.reason, page.tombstone.gap_from, page.tombstone.gap_to) == ("recreated", 1, 3)
    assert seqs(page) == [1, 2, 3]
    assert read(engine, "a", from_seq=2, epoch=engine.topic("a").epoch).tombstone is None


def test_empty_topic_resets_a_cursor_of_an_earlier_epoch():
    engine = open_engine()
    put(engine, "a")
    page = read(engine, "a", from_seq=5)
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.next_from_seq) == (1, 0, 0)


def test_projections_put_tags_in_and_leave_meta_or_data_out():
    engine = open_engine(SimClock(ms=5))
    append(
        engine, "a", record('{"data":1}', tag='t"é', node="n\n", meta='{"meta":{}}'), record(tag="x"), record(meta="{}")
    )
    node = b'"$node":"n\\n"'
    assert b"".join(read(engine, "a", projection=Projection(tags=True)).parts) == (
        b'{"$seq":1,"$ts":5,%b,"$tag":"t\\"\xc3\xa9","data":{"data":1},"meta":{"meta":{}}},'
        b'{"$seq":2,"$ts":5,"$tag":"x","data":1},{"$seq":3,"$ts":5,"data":1,"meta":{}},' % node
    )
    assert b"".join(read(engine, "a", projection=Projection(meta=False)).parts) == (
        b'{"$seq":1,"$ts":5,%b,"data":{"data":1}},{"$seq":2,"$ts":5,"data":1},{"$seq":3,"$ts":5,"data":1},' % node
    )
    assert b"".join(read(engine, "a", projection=Projection(data=False, meta=False)).parts) == (
        b'{"$seq":1,"$ts":5,%b},{"$seq":2,"$ts":5},{"$seq":3,"$ts":5},' % node
    )


def test_a_read_without_anything_to_skip_is_one_slice_a_segment():
    engine = topic_of(10)
    assert len(read(engine, "a", limit=4).parts) == 1
    assert len(read(engine, "a").parts) == 3


def test_a_body_has_no_comma_at_its_end(ten):
    page = read(ten, "a", limit=2)
    assert [found["$seq"] for found in objects(page)] == [1, 2]
    assert b"".join(page.body()).endswith(b"}")


def test_a_missing_topic_is_not_created_by_a_read():
    engine = open_engine()
    with pytest.raises(TopicsError) as caught:
        engine.read("a", Query())
    assert caught.value.code is Code.TOPIC_NOT_FOUND
    assert engine.topics == {}


def test_a_read_that_needs_the_disk_says_so_instead_of_waiting():
    engine = topic_of(10, sealed=True, cold=True)
    with pytest.raises(Cold) as caught:
        engine.read("a", Query())
    hold = Hold()
    hold.load(caught.value)
    assert seqs(engine.read("a", Query())[1]) == list(range(1, 11)), "one load is enough for columns and data"


def test_a_read_skips_deleted_records_in_silence(ten):
    delete(ten, "a", match=TagMatch("Eq", "t4"))
    delete(ten, "a", match=TagMatch("Eq", "t5"))
    page = read(ten, "a", from_seq=2, limit=2)
    assert (seqs(page), page.next_from_seq, page.tombstone) == ([3, 6], 6, None)


# --- damage


def damaged(part: str):
    """A topic of ten whose second segment (5 to 8) has a flipped bit."""
    disk = SimDisk()
    engine = topic_of(10)
    sealer = Sealer(disk)
    sealer.seal(engine.topic("a"))
    sealer.reopen(engine.topic("a"))
    segment = engine.topic("a").segments[1]
    at = {"data": 20, "index": segment.footer.sums_at + 9}[part]
    disk.flip(segment.path, at * 8)
    return engine


@pytest.mark.parametrize("part", ["data", "index"])
def test_damaged_segment_becomes_a_gap_and_the_rest_is_served(part):
    engine = damaged(part)
    first = read(engine, "a")
    assert (seqs(first), first.tombstone, first.next_from_seq) == ([1, 2, 3, 4], None, 4)
    second = read(engine, "a", from_seq=4)
    gap = second.tombstone
    assert (gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate) == (5, 8, "corrupt", 4)
    assert seqs(second) == [9, 10]
    assert (engine.topic("a").count, engine.topic("a").earliest) == (6, 1)


@pytest.mark.parametrize("part", ["data", "index"])
def test_gap_that_the_front_has_passed_counts_as_lost_at_the_front(part):
    engine = damaged(part)
    read(engine, "a")
    delete(engine, "a", before_seq=5)
    topic = engine.topic("a")
    assert (topic.earliest, topic.evict_floor) == (9, 9)
    page = read(engine, "a")
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.missed_estimate) == (1, 8, 4)
    assert seqs(page) == [9, 10]


def test_second_gap_right_after_a_tombstone_is_reported():
    engine = damaged("data")
    read(engine, "a")
    page = read(engine, "a", from_seq=99, from_ts=105)
    assert (page.tombstone.reason, page.count, page.next_from_seq) == ("recreated", 0, 5)
    following = read(engine, "a", from_seq=page.next_from_seq)
    assert (following.tombstone.gap_from, following.tombstone.gap_to, following.tombstone.reason) == (6, 8, "corrupt")
    assert seqs(following) == [9, 10]


def test_segment_with_a_missing_file_is_a_gap():
    disk = SimDisk()
    engine = topic_of(10)
    sealer = Sealer(disk)
    sealer.seal(engine.topic("a"))
    disk.unlink(engine.topic("a").segments[0].path)
    page = read(engine, "a")
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 4, "corrupt")
    assert seqs(page) == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("sealed", [True, False])
def test_range_with_few_deleted_records_reads_like_the_slow_path(sealed: bool):
    rng = Random(5)
    server = SimServer.start(SimDisk(seed=5), segments=SegmentLimits(max_events=500))
    dead = {1, 498, 499, 500, 501, 640, 897, *rng.sample(range(900), 30)}
    for n in range(900):
        server.append("t", f'"{rng.random()}"', tag=f"{'a' if n % 3 else 'b'}-" if n in dead else None)
    if sealed:
        server.checkpoint()
    for prefix in ("a-", "b-"):
        server.delete("t", match=TagMatch("Glob", prefix))
        for _ in range(100):
            query = {"from_seq": rng.randrange(900), "limit": rng.choice([1, 7, 100, 700])}
            query |= {"max_bytes": rng.choice([300, 1 << 20]), "lend": rng.random() < 0.5}
            found = [server.engine.read("t", Query(**query, plain=plain))[1] for plain in (True, False)]
            fast, slow = ((b"".join(map(bytes, one.parts)), one.count, one.next_from_seq, one.scanned) for one in found)
            assert fast == slow, query
