"""Where a mirrored record has been, and how its topic's range is cut into requests."""

import json

from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.mirror_task import KEY, Hop, MirrorTask, hops_of
from topics.spark.pipelines.run import delivery
from topics.spark.pipelines.run.delivery import OutgoingRow, cut
from topics.spark.pipelines.run.tasks import pack

HOP = Hop(at="a", topic="t", epoch=7, seq=3, ts=99)


def stamped(meta: bytes | None, hops: list[Hop]) -> bytes:
    return delivery.stamped(meta, KEY, hops)


def task(start: int, stop: int) -> MirrorTask:
    where = ConnectionOptions()
    return MirrorTask(
        source=where, target=where, source_id="a", target_id="b", topic="t", into="t", epoch=7,
        start=start, stop=stop,
    )  # fmt: skip


def rows(seqs: list[int], size_bytes: int = 10) -> list[OutgoingRow]:
    return [OutgoingRow(seq, seq, b"x" * size_bytes) for seq in seqs]


def covered(found: list[OutgoingRow], one: MirrorTask) -> list[str]:
    return [one.key(*part).removeprefix(f"{one.run}/") for part in cut(found, one.start, one.stop)]


def test_stamp_keeps_the_rest_of_the_meta():
    stamp = b'"_topics_mirror":[{"at":"a","topic":"t","epoch":7,"seq":3,"ts":99}]'
    assert stamped(None, [HOP]) == b"{%b}" % stamp
    assert stamped(b"{ }", [HOP]) == b"{%b}" % stamp
    assert stamped(b'{"n": 1.50, "n": 2}', [HOP]) == b'{"n": 1.50, "n": 2,%b}' % stamp


def test_second_hop_replaces_the_list_of_the_first():
    other = Hop(at="b", topic="t", epoch=1, seq=5, ts=100)
    twice = stamped(stamped(b'{"n":1.50}', [HOP]), [HOP, other])
    assert hops_of(twice) == [HOP, other]
    assert b"1.50" in twice
    assert list(json.loads(twice)) == ["n", "_topics_mirror"]


def test_invalid_list_counts_as_absent():
    assert hops_of(None) == []
    assert hops_of(b'{"trace":"abc"}') == []
    assert hops_of(b'{"text":"\\"_topics_mirror\\""}') == []
    assert hops_of(b'{"_topics_mirror":"no list"}') == []


def test_half_surrogate_pair_does_not_hide_the_list():
    twice = stamped(stamped(b'{"\\udc00":"\\ud800"}', [HOP]), [HOP, HOP])
    assert hops_of(twice) == [HOP, HOP]
    assert twice.startswith(b'{"\\udc00":"\\ud800",')


def test_gap_covers_all_its_seqs():
    gap = Hop(at="a", topic="t", epoch=7, seq=3, to=9)
    assert gap.last == 9
    assert hops_of(stamped(b'{"kind":"gap"}', [gap])) == [gap]


def test_requests_are_cut_at_the_same_seqs_in_every_run():
    assert covered(rows([1, 2, 999, 1000, 2500]), task(1, 2601)) == ["1-999", "1000-1999", "2000-2600"]
    assert covered(rows([500, 1500]), task(500, 1600)) == ["500-999", "1000-1599"]


def test_record_deleted_meanwhile_changes_no_key():
    one = task(1, 2001)
    assert covered(rows([1, 2, 3, 1000]), one)[:2] == covered(rows([2, 1000]), one)[:2] == ["1-999", "1000-1999"]


def test_large_request_is_cut_before_the_record_that_exceeds_it():
    found = rows([10, 20, 30], size_bytes=2 << 20)
    assert covered(found, task(1, 101)) == ["1-29", "30-100"]


def test_larger_gap_is_another_request():
    small, large = ([OutgoingRow(1, to, b"x"), *rows([50])] for to in (9, 10))
    assert covered(small, task(1, 101)) != covered(large, task(1, 101))


def test_tasks_are_distributed_evenly():
    assert pack([10, 1, 1, 8], 2) == [[0], [1, 2, 3]]
    assert pack([5], 1) == [[0]]
