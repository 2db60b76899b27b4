"""Verbs of a queue that find a segment damaged: its jobs are lost, and the others are counted as before."""

from __future__ import annotations

import pytest

from tests.queues.harness import QUEUE, Workshop
from topics.engine.write import removal
from topics.storage.segments.sealed import SealedSegment


def shop_with_segments(**config: int | str) -> Workshop:
    """A queue with jobs 1 to 3 in one segment, 4 to 6 in the next, and 7, whose first four jobs a worker holds."""
    shop = Workshop(durability="disk", **config)
    shop.write("1", "2", "3")
    shop.write("4", "5", "6")
    shop.write("7")
    shop.claim("w", 4)
    shop.server.checkpoint()
    return shop


def damage(shop: Workshop) -> None:
    """Damage the index of the first segment, which is not in memory."""
    segment = shop.topic.segments[0]
    assert isinstance(segment, SealedSegment)
    segment.loaded = segment._held = None
    shop.server.disk.flip(segment.path, 8 * (segment.footer.sums_at + 2))


def end_leases(shop: Workshop) -> None:
    """Check that all jobs that are left can be claimed, and that the counts are theirs."""
    shop.clock.advance(ms=1001)
    assert [one["$seq"] for one in shop.claim("x", 9)] == [seq for seq in (4, 5, 6, 7) if shop.topic.is_live(seq)]
    assert shop.counts == (0, shop.topic.count, 0)


@pytest.mark.parametrize(("seqs", "done", "skipped"), [((1, 4), 1, [1]), ((4, 2, 1), 1, [1, 2]), ((3, 1), 0, [1, 3])])
def test_ack_that_finds_damage_skips_the_lost_jobs(seqs: tuple[int, ...], done: int, skipped: list[int]):
    shop = shop_with_segments()
    damage(shop)
    outcome = shop.ack("w", *seqs)
    assert (outcome.done, outcome.skipped) == (done, skipped)
    assert (outcome.ready, outcome.in_flight) == (3, 1 - done)
    assert list(shop.topic.losses.runs) == [(1, 3, "corrupt")]
    assert shop.ack("w", *seqs).skipped == list(seqs)
    end_leases(shop)


def test_ack_that_finds_damage_keeps_those_of_its_turn():
    shop = shop_with_segments()
    engine, topic = shop.server.engine, shop.topic
    first = engine.queues.ack(topic, "w", [2], None)
    damage(shop)
    second = engine.queues.ack(topic, "w", [1, 4], None)
    engine.flush()
    assert [(one.value().done, one.value().skipped) for one in (first, second)] == [(0, [2]), (1, [1])]
    end_leases(shop)


@pytest.mark.parametrize("verb", ["nack", "extend", "delete"])
def test_other_verbs_that_meet_damage_leave_the_counts_right(verb: str):
    shop = shop_with_segments()
    damage(shop)
    if verb == "nack":
        shop.nack("w", 1, 4)
    elif verb == "extend":
        shop.extend("w", 1, 4, lease_ms=1000)
    else:
        shop.done(shop.server.engine.delete_seqs(QUEUE, [1, 4]))
    shop.ack("w", 2)
    end_leases(shop)


def test_move_of_dead_letters_that_finds_damage_moves_the_others(monkeypatch: pytest.MonkeyPatch):
    shop = shop_with_segments(max_deliveries=1, dead_letter="jobs.dead")
    by_seq = removal.by_seq

    def find(*asked: object) -> removal.Removal:
        monkeypatch.undo()
        damage(shop)  # after the records were read
        return by_seq(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(removal, "by_seq", find)
    shop.clock.advance(ms=1001)
    shop.move_exhausted()
    assert shop.server.data("jobs.dead") == ["4"]
    assert (shop.counts, shop.queue.dead_lettered) == ((3, 0, 0), 1)
