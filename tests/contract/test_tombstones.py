"""Evicted and expired records are reported once with their exact range; deletes are silent."""

from typing import Any

import pytest

from tests.contract.api import Api, data, eventually, now_ms, seqs


def expired(api: Api, topic: str, upto: int) -> Any:
    """Wait until every record up to a seq has expired. Return the state of the topic."""
    return eventually(lambda: api.state(topic), lambda state: state["earliest_seq"] > upto)


# --- caps


def test_evicted_records_are_reported_and_reading_continues(api: Api, topic: str):
    api.put(topic, cap_records=4)
    api.write(topic, *range(1, 11))
    page = api.diff(topic, limit=3)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 6,
        "reason": "cap",
        "missed_estimate": 6,
        "earliest_seq": 7,
        "head_seq": 10,
    }
    assert (data(page), page["next_from_seq"], page["caught_up"], page["lag"]) == ([7, 8, 9], 9, False, 1)
    assert (page["earliest_seq"], page["head_seq"]) == (7, 10)


def test_tombstone_is_reported_once(api: Api, topic: str):
    api.put(topic, cap_records=2)
    api.write(topic, *range(5))
    first = api.diff(topic)
    assert first["tombstone"] is not None
    assert api.diff(topic, from_seq=first["next_from_seq"])["tombstone"] is None


@pytest.mark.parametrize("from_seq", range(10))
def test_tombstone_appears_exactly_below_the_evict_floor(api: Api, topic: str, from_seq: int):
    api.put(topic, cap_records=4)
    api.write(topic, *range(1, 11))  # floor 7
    page = api.diff(topic, from_seq=from_seq)
    if from_seq + 1 < 7:
        assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (from_seq + 1, 6)
        assert page["tombstone"]["missed_estimate"] == 6 - from_seq
    else:
        assert page["tombstone"] is None
    assert seqs(page) == list(range(max(from_seq + 1, 7), 11))


def test_cap_in_bytes_leaves_a_tombstone_too(api: Api, topic: str):
    api.put(topic, cap_bytes=1000)
    for n in range(20):
        api.write(topic, f"{n:0100}")
    page = api.diff(topic)
    gap = page["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, page["earliest_seq"] - 1, "cap")
    assert seqs(page) == list(range(page["earliest_seq"], 21))


def test_tighter_cap_evicts_stored_records(api: Api, topic: str):
    api.write(topic, *range(1, 11))
    api.put(topic, cap_records=3)
    page = api.diff(topic)
    assert (page["tombstone"]["gap_to"], page["tombstone"]["reason"], data(page)) == (7, "cap", [8, 9, 10])
    assert api.state(topic)["count"] == 3


def test_looser_cap_restores_nothing(api: Api, topic: str):
    api.put(topic, cap_records=2)
    api.write(topic, 1, 2, 3, 4)
    api.put(topic, cap_records=0)
    api.write(topic, 5)
    page = api.diff(topic)
    assert (page["tombstone"]["gap_to"], data(page)) == (2, [3, 4, 5])


# --- time to live


def test_expired_records_leave_a_tombstone_without_any_write(api: Api, topic: str):
    api.put(topic, ttl_ms=30)
    api.write(topic, 1, 2, 3)
    state = expired(api, topic, 3)
    assert (state["earliest_seq"], state["head_seq"], state["count"]) == (4, 3, 0)
    page = api.diff(topic)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "ttl",
        "missed_estimate": 3,
        "earliest_seq": 4,
        "head_seq": 3,
    }
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["lag"]) == ([], 3, True, 0)


def test_reader_past_expired_records_gets_no_tombstone(api: Api, topic: str):
    api.put(topic, ttl_ms=1)
    api.write(topic, 1, 2, 3)
    expired(api, topic, 3)
    assert api.diff(topic, from_seq=3)["tombstone"] is None
    assert api.diff(topic, from_seq=2)["tombstone"]["gap_from"] == 3


def test_every_record_is_delivered_or_reported_lost(api: Api, topic: str):
    api.put(topic, ttl_ms=20)
    api.write(topic, *range(1, 6))

    def look() -> bool:
        page = api.diff(topic)
        lost = 0 if page["tombstone"] is None else page["tombstone"]["missed_estimate"]
        assert lost + len(page["records"]) == 5
        return lost == 5

    eventually(look, bool)


def test_tighter_ttl_expires_stored_records(api: Api, topic: str):
    api.write(topic, 1, 2)
    assert api.diff(topic)["tombstone"] is None
    api.put(topic, ttl_ms=1)
    expired(api, topic, 2)
    assert api.diff(topic)["tombstone"]["reason"] == "ttl"


def test_removed_ttl_restores_nothing(api: Api, topic: str):
    api.put(topic, ttl_ms=1)
    api.write(topic, 1)
    expired(api, topic, 1)
    api.put(topic, ttl_ms=0)
    api.write(topic, 2)
    page = api.diff(topic)
    assert (page["tombstone"]["gap_to"], data(page)) == (1, [2])


def test_caps_and_ttl_together_are_mixed(api: Api, topic: str):
    api.put(topic, cap_records=3)
    api.write(topic, 1, 2, 3, 4, 5)
    api.put(topic, ttl_ms=1)
    expired(api, topic, 5)
    gap = api.diff(topic)["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (1, 5, "mixed", 5)
    assert api.diff(topic, from_seq=2)["tombstone"]["reason"] == "ttl"


# --- deletes


def test_deleted_gap_is_silent(api: Api, topic: str):
    api.write(topic, *range(1, 6))
    api.delete(topic, before_seq=4)
    page = api.diff(topic)
    assert (page["tombstone"], data(page), page["earliest_seq"]) == (None, [4, 5], 4)


def test_fully_deleted_topic_has_no_tombstone(api: Api, topic: str):
    api.write(topic, *range(1, 6))
    api.delete(topic, before_seq=6)
    page = api.diff(topic)
    assert (page["tombstone"], page["records"]) == (None, [])
    assert (page["next_from_seq"], page["earliest_seq"], page["caught_up"], page["lag"]) == (5, 6, True, 0)


def test_deleted_records_in_a_gap_are_not_counted(api: Api, topic: str):
    api.put(topic, cap_records=3)
    api.write(topic, 1, 2, 3)
    api.delete(topic, before_seq=3)  # deletes 1 and 2
    api.write(topic, 4, 5, 6)  # 3 is evicted
    page = api.diff(topic)
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 3)
    assert page["tombstone"]["missed_estimate"] == 1
    assert data(page) == [4, 5, 6]


def test_gap_ends_before_the_first_live_record(api: Api, topic: str):
    api.put(topic, cap_records=3)
    api.write(topic, 1, 2, 3, 4, 5)  # 1 and 2 are evicted
    api.delete(topic, before_seq=5)  # deletes 3 and 4
    page = api.diff(topic)
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 4)
    assert page["tombstone"]["missed_estimate"] == 2
    assert (data(page), page["earliest_seq"]) == ([5], 5)
    # Below the first live record and at or above the floor: only deleted records are missing.
    silent = api.diff(topic, from_seq=2)
    assert (silent["tombstone"], data(silent)) == (None, [5])


def test_eviction_counts_live_records_only(api: Api, topic: str):
    api.put(topic, cap_records=3)
    api.write(topic, 1, 2, 3, tag="x")
    api.delete(topic, match="x")
    api.write(topic, 4, 5, 6)
    page = api.diff(topic)
    assert (page["tombstone"], data(page)) == (None, [4, 5, 6])


def test_delete_in_the_middle_is_silent(api: Api, topic: str):
    api.append(topic, [{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 9)])
    api.delete(topic, match="even")
    page = api.diff(topic)
    assert (page["tombstone"], data(page), page["next_from_seq"], page["caught_up"]) == (None, [1, 3, 5, 7], 8, True)


def test_earliest_seq_never_decreases(api: Api, topic: str):
    api.put(topic, cap_records=5)
    seen = []
    for n in range(6):
        api.write(topic, n, n, tag=f"t{n}")
        seen.append(api.state(topic)["earliest_seq"])
        api.delete(topic, match=f"t{n - 1}")
        seen.append(api.state(topic)["earliest_seq"])
    assert seen == sorted(seen)


# --- epochs


def test_cursor_beyond_the_head_is_from_an_earlier_epoch(api: Api, topic: str):
    api.write(topic, *range(10))
    api.drop(topic)
    api.write(topic, "a", "b", "c")
    page = api.diff(topic, from_seq=10)
    assert page["tombstone"] == {
        "gap_from": 1,
        "gap_to": 3,
        "reason": "recreated",
        "missed_estimate": page["tombstone"]["missed_estimate"],
        "earliest_seq": 1,
        "head_seq": 3,
    }
    assert (data(page), page["next_from_seq"], page["caught_up"], page["lag"]) == (["a", "b", "c"], 3, True, 0)


@pytest.mark.parametrize("from_seq", [1, 7, 2**63, 2**64 - 1])
def test_cursor_beyond_an_empty_topic_is_from_an_earlier_epoch(api: Api, topic: str, from_seq: int):
    api.put(topic)
    page = api.diff(topic, from_seq=from_seq)
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"], page["tombstone"]["reason"]) == (
        1,
        0,
        "recreated",
    )
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["lag"]) == ([], 0, True, 0)


def test_stale_cursor_continues_at_the_first_live_record(api: Api, topic: str):
    api.write(topic, "a", "b", "c")
    api.delete(topic, before_seq=3)
    page = api.diff(topic, from_seq=99)
    assert (page["tombstone"]["reason"], page["tombstone"]["earliest_seq"], data(page)) == ("recreated", 3, ["c"])


def test_epoch_detects_a_recreated_topic_past_the_cursor(api: Api, topic: str):
    api.write(topic, "old", "older")
    epoch = api.diff(topic)["epoch"]
    api.drop(topic)
    api.write(topic, "a", "b", "c")
    assert api.diff(topic, from_seq=2)["tombstone"] is None  # the seq alone shows no difference
    page = api.diff(topic, from_seq=2, epoch=epoch)
    assert (page["tombstone"]["reason"], page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (
        "recreated",
        1,
        3,
    )
    assert data(page) == ["a", "b", "c"]
    assert page["epoch"] == api.state(topic)["epoch"] != epoch
    assert api.diff(topic, from_seq=page["next_from_seq"], epoch=page["epoch"])["tombstone"] is None


def test_long_poll_with_stale_epoch_returns_at_once(api: Api, topic: str):
    api.put(topic)
    assert api.diff(topic, epoch=1, wait_ms=30_000)["tombstone"]["reason"] == "recreated"


def test_every_seq_is_delivered_deleted_or_lost(api: Api, topic: str):
    """A slow reader can account for every assigned seq."""
    api.put(topic, cap_records=7)
    accounted: dict[int, str] = {}
    cursor = 0
    for n in range(12):
        written = api.write(topic, *range(3), tag=f"t{n}")["seqs"]
        if n % 4 == 1:
            assert api.delete(topic, match=f"t{n}")["deleted"] == 3
            accounted |= dict.fromkeys(written, "deleted")
        if n % 3 == 2:
            page = api.diff(topic, from_seq=cursor, limit=4)
            if gap := page["tombstone"]:
                accounted = dict.fromkeys(range(gap["gap_from"], gap["gap_to"] + 1), "lost") | accounted
            accounted |= dict.fromkeys(seqs(page), "delivered")
            cursor = page["next_from_seq"]
            assert all(seq in accounted for seq in range(1, cursor + 1))
    assert set(accounted.values()) == {"delivered", "deleted", "lost"}


def test_tombstone_by_time_begins_with_the_first_loss_of_that_time(api: Api, topic: str):
    api.put(topic, cap_records=10)
    stamps = []
    for at in range(4):
        api.write(topic, at)
        stamps.append(api.diff(topic, from_seq=at)["records"][0]["$ts"])
        eventually(now_ms, lambda now: now > stamps[-1] + 1)
    api.put(topic, cap_records=1)
    tombstone = api.diff(topic, from_ts=stamps[2])["tombstone"]
    assert (tombstone["gap_from"], tombstone["gap_to"], tombstone["missed_estimate"]) == (3, 3, 1)
    assert api.diff(topic, from_ts=stamps[2] + 1)["tombstone"] is None
    assert api.diff(topic, from_ts=stamps[0])["tombstone"]["gap_from"] == 1
