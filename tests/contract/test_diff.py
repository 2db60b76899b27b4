"""Reads: cursor, batch limits, skipped records, long polls."""

import time
from typing import Any

import pytest

from tests.contract.api import Api, Background, data, eventually, now_ms, seqs

# --- the cursor


def test_diff_answer_has_all_fields(api: Api, topic: str):
    epoch = api.put(topic)["epoch"]
    api.write(topic, "a", "b", "c")
    page = api.diff(topic, limit=2)
    records = page.pop("records")
    assert page.pop("performance")["records_scanned"] == 2
    assert page == {
        "topic": topic,
        "epoch": epoch,
        "next_from_seq": 2,
        "head_seq": 3,
        "earliest_seq": 1,
        "caught_up": False,
        "tombstone": None,
        "lag": 1,
    }
    assert [record.keys() for record in records] == [{"$seq", "$ts", "data"}] * 2


def test_from_seq_is_exclusive_and_zero_is_the_beginning(api: Api, topic: str):
    api.write(topic, "a", "b", "c")
    assert data(api.diff(topic)) == data(api.diff(topic, from_seq=0)) == ["a", "b", "c"]
    assert data(api.diff(topic, from_seq=1)) == ["b", "c"]
    assert data(api.diff(topic, from_seq=2)) == ["c"]


def test_reader_at_the_head_is_caught_up(api: Api, topic: str):
    api.write(topic, "a", "b")
    page = api.diff(topic, from_seq=2)
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["lag"]) == ([], 2, True, 0)
    assert page["tombstone"] is None


def test_empty_topic_is_caught_up(api: Api, topic: str):
    api.put(topic)
    page = api.diff(topic)
    assert (page["records"], page["next_from_seq"], page["head_seq"], page["earliest_seq"]) == ([], 0, 0, 1)
    assert (page["caught_up"], page["lag"], page["tombstone"]) == (True, 0, None)


def test_pages_join_to_the_whole_topic(api: Api, topic: str):
    for start in range(0, 100, 10):
        api.write(topic, *range(start, start + 10))
    assert [record["data"] for record in api.read_all(topic, limit=7)] == list(range(100))


def test_reading_changes_nothing(api: Api, topic: str):
    api.write(topic, *range(10))
    first, second = api.diff(topic, limit=4), api.diff(topic, limit=4)
    del first["performance"], second["performance"]
    assert first == second


@pytest.mark.parametrize("fields", [{}, {"limit": 0}])
def test_default_limit_is_256_records(api: Api, topic: str, fields: Any):
    api.write(topic, *range(300))
    page = api.diff(topic, **fields)
    assert (len(page["records"]), page["next_from_seq"], page["lag"], page["caught_up"]) == (256, 256, 44, False)


@pytest.mark.parametrize("limit", [1001, 2**32 - 1, 2**32, 2**64 - 1])
def test_limit_above_1000_is_clamped(api: Api, topic: str, limit: int):
    api.write(topic, *range(1100))
    page = api.diff(topic, limit=limit)
    assert (len(page["records"]), page["next_from_seq"]) == (1000, 1000)


def test_limit_of_1000_is_not_clamped(api: Api, topic: str):
    api.write(topic, *range(1100))
    assert len(api.diff(topic, limit=1000)["records"]) == 1000
    assert len(api.diff(topic, limit=1)["records"]) == 1


def test_diff_never_creates_a_topic(api: Api, topic: str):
    for fields in ({}, {"wait_ms": 1000}):
        error = api.refused(404, "topic_not_found", "POST", f"/v0/topics/{topic}/diff", fields)
        assert error["detail"]["topic"] == topic
    api.refused(404, "topic_not_found", "GET", f"/v0/topics/{topic}")


# --- what is shown


def test_tags_are_shown_only_when_asked_for(api: Api, topic: str):
    api.append(topic, [{"data": 1, "tag": "x"}, {"data": 2}])
    assert all("$tag" not in record for record in api.diff(topic)["records"])
    assert all("$tag" not in record for record in api.diff(topic, include_tags=False)["records"])
    assert [record.get("$tag") for record in api.diff(topic, include_tags=True)["records"]] == ["x", None]


def test_meta_is_included_by_default(api: Api, topic: str):
    api.append(topic, [{"data": 1, "meta": {"k": 1}}, {"data": 2}])
    assert [record.get("meta") for record in api.diff(topic)["records"]] == [{"k": 1}, None]
    assert [record.get("meta") for record in api.diff(topic, include_meta=True)["records"]] == [{"k": 1}, None]
    assert all("meta" not in record for record in api.diff(topic, include_meta=False)["records"])


@pytest.mark.parametrize("include_tags", [True, False])
@pytest.mark.parametrize("include_meta", [True, False])
def test_every_combination_of_parts_shows_the_same_records(
    api: Api, topic: str, include_tags: bool, include_meta: bool
):
    written = [
        {"data": {"n": n}}
        | ({"node": f"node-{n % 3}"} if n % 2 else {})
        | ({"tag": f"tag-{n}"} if n % 3 else {})
        | ({"meta": {"n": [n]}} if n % 5 else {})
        for n in range(40)
    ]
    api.append(topic, written)
    api.delete(topic, match="tag-7")
    del written[7]
    shown = api.diff(topic, include_tags=include_tags, include_meta=include_meta)["records"]
    for record, source in zip(shown, written, strict=True):
        assert record["data"] == source["data"]
        assert record.get("$node") == source.get("node")
        assert record.get("$tag") == (source.get("tag") if include_tags else None)
        assert record.get("meta") == (source.get("meta") if include_meta else None)


# --- bounds of one answer


def test_default_answer_size_is_one_mib(api: Api, topic: str):
    for n in range(4):
        api.write(topic, str(n) * 400_000)
    page = api.diff(topic)
    assert (seqs(page), page["next_from_seq"], page["caught_up"], page["lag"]) == ([1, 2], 2, False, 2)
    assert [record["$seq"] for record in api.read_all(topic)] == [1, 2, 3, 4]
    assert seqs(api.diff(topic, max_batch_bytes=4 << 20)) == [1, 2, 3, 4]


def test_answer_has_at_least_one_record_of_any_size(api: Api, topic: str):
    api.write(topic, "small", "x" * 100_000, "y" * 100_000)
    assert seqs(api.diff(topic, max_batch_bytes=1)) == [1]
    assert seqs(api.diff(topic, from_seq=1, max_batch_bytes=50_000)) == [2]
    assert [record["$seq"] for record in api.read_all(topic, max_batch_bytes=1)] == [1, 2, 3]


def test_byte_budget_holds_among_skipped_records_too(api: Api, topic: str):
    api.append(topic, [{"data": "x" * 1000, "node": "me" if n % 2 else "other"} for n in range(40)])
    page = api.diff(topic, node="me", max_batch_bytes=5000)
    assert 1 <= len(page["records"]) <= 5
    assert page["next_from_seq"] >= seqs(page)[-1]
    found = [record["$seq"] for record in api.read_all(topic, node="me", max_batch_bytes=5000)]
    assert found == list(range(1, 41, 2))


def test_byte_budget_is_clamped_to_eight_mib(api: Api, topic: str):
    for _ in range(3):
        api.append(topic, [{"data": "x" * 1_000_000} for _ in range(4)])
    page = api.diff(topic, max_batch_bytes=2**64 - 1)
    assert seqs(page) == list(range(1, 9))


def test_limit_counts_delivered_records_only(api: Api, topic: str):
    api.append(topic, [{"data": n, "node": "other" if n % 100 == 99 else "me"} for n in range(1000)])
    page = api.diff(topic, node="me", limit=5)
    assert data(page) == [99, 199, 299, 399, 499]
    assert page["next_from_seq"] == 500
    assert page["performance"]["records_scanned"] == 500


def test_one_answer_examines_at_most_10000_seqs(api: Api, topic: str):
    api.write(topic, *[0] * 10_000, node="me")
    api.write(topic, *[0] * 2_000, node="me")
    api.write(topic, "at last", node="other")
    first = api.diff(topic, node="me")
    assert (first["records"], first["next_from_seq"], first["caught_up"], first["lag"]) == ([], 10_000, False, 2001)
    assert first["performance"]["records_scanned"] == 10_000
    second = api.diff(topic, node="me", from_seq=10_000)
    assert (data(second), second["next_from_seq"], second["caught_up"]) == (["at last"], 12_001, True)


def test_skipped_records_at_the_end_move_the_cursor(api: Api, topic: str):
    api.append(topic, [{"data": 1}, {"data": 2, "node": "me"}, {"data": 3, "tag": "gone"}])
    api.delete(topic, match="gone")
    page = api.diff(topic, node="me")
    assert (seqs(page), page["next_from_seq"], page["caught_up"]) == ([1], 3, True)


# --- filter, from_ts, epoch


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("a:1", [1]),
        (["tag", "Eq", "a:1"], [1]),
        (["tag", "Glob", "a:*"], [1, 2]),
        (["tag", "Glob", "*"], [1, 2, 3, 4]),
        ("nobody", []),
        (["tag", "Glob", "a:1"[:1] + "*"], [1, 2, 4]),
        (["tag", "Eq", "a:*"], []),
    ],
)
def test_filter_keeps_the_records_whose_tag_matches(api: Api, topic: str, wanted: Any, expected: list[int]):
    tags = ["a:1", "a:2", "b:1", "ab"]
    api.append(topic, [{"data": n, "tag": tag} for n, tag in enumerate(tags, 1)] + [{"data": "untagged"}])
    page = api.diff(topic, filter=wanted)
    assert data(page) == expected
    assert (page["next_from_seq"], page["caught_up"], page["tombstone"]) == (5, True, None)


@pytest.mark.parametrize(
    "wanted", [["tag", "Eq"], ["tag", "Like", "x"], ["node", "Eq", "x"], ["tag", "Glob", "x"], 7, {}, [], ["x"]]
)
def test_invalid_filter_is_refused(api: Api, topic: str, wanted: Any):
    api.put(topic)
    error = api.refused(400, "invalid_request", "POST", f"/v0/topics/{topic}/diff", {"filter": wanted})
    assert error["detail"]["field"] == "filter"


def test_filter_with_limit_continues_past_other_records(api: Api, topic: str):
    api.append(topic, [{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(20)])
    page = api.diff(topic, filter="odd", limit=3)
    assert (data(page), page["next_from_seq"]) == ([1, 3, 5], 6)


def test_from_ts_begins_with_the_first_record_of_that_time(api: Api, topic: str):
    api.write(topic, "early")
    [early] = api.diff(topic)["records"]
    eventually(now_ms, lambda ms: ms > early["$ts"] + 1)
    api.write(topic, "late")
    late = api.diff(topic)["records"][1]
    assert data(api.diff(topic, from_ts=0)) == ["early", "late"]
    assert data(api.diff(topic, from_ts=early["$ts"])) == ["early", "late"]
    assert data(api.diff(topic, from_ts=early["$ts"] + 1)) == ["late"]
    assert data(api.diff(topic, from_ts=late["$ts"])) == ["late"]
    page = api.diff(topic, from_ts=late["$ts"] + 1)
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 2, True, None)


def test_from_ts_and_from_seq_together_begin_at_the_later(api: Api, topic: str):
    api.write(topic, 1, 2, 3)
    ts = api.diff(topic)["records"][0]["$ts"]
    assert data(api.diff(topic, from_ts=ts, from_seq=2)) == [3]
    assert data(api.diff(topic, from_ts=0, from_seq=1)) == [2, 3]


def test_matching_epoch_has_no_effect(api: Api, topic: str):
    api.write(topic, 1, 2)
    epoch = api.diff(topic)["epoch"]
    page = api.diff(topic, from_seq=1, epoch=epoch)
    assert (data(page), page["tombstone"]) == ([2], None)


# --- waiting


def test_long_poll_returns_existing_records_at_once(api: Api, topic: str):
    api.write(topic, 1)
    start = time.monotonic()
    assert data(api.diff(topic, wait_ms=30_000)) == [1]
    assert time.monotonic() - start < 10


def test_waiting_reader_gets_a_record_when_it_is_written(api: Api, topic: str):
    api.put(topic)
    waiting = Background(lambda: api.diff(topic, wait_ms=30_000))
    wait_until_read(api, topic)
    assert not waiting.done
    api.write(topic, "news")
    page = waiting.result()
    assert (data(page), page["next_from_seq"], page["caught_up"]) == (["news"], 1, True)


def test_long_poll_without_records_returns_empty_in_time(api: Api, topic: str):
    api.write(topic, 1)
    start = time.monotonic()
    page = api.diff(topic, from_seq=1, wait_ms=60)
    assert time.monotonic() - start >= 0.05
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 1, True, None)


@pytest.mark.parametrize("wait_ms", [30_001, 2**32, 2**64 - 1])
def test_wait_above_30_s_is_clamped(api: Api, topic: str, wait_ms: int):
    api.put(topic)
    waiting = Background(lambda: api.diff(topic, wait_ms=wait_ms))
    wait_until_read(api, topic)
    api.write(topic, "news")
    assert data(waiting.result()) == ["news"]


def test_readers_own_records_do_not_wake_it(api: Api, topic: str):
    api.put(topic)
    waiting = Background(lambda: api.diff(topic, node="me", wait_ms=30_000))
    wait_until_read(api, topic)
    for n in range(5):
        api.write(topic, n, node="me")
    assert not waiting.done
    api.write(topic, "theirs", node="other")
    page = waiting.result()
    assert (data(page), page["next_from_seq"], page["caught_up"]) == (["theirs"], 6, True)


def test_long_poll_moves_the_cursor_past_skipped_records(api: Api, topic: str):
    api.write(topic, 1, 2, 3, node="me")
    page = api.diff(topic, node="me", wait_ms=50)
    assert (page["records"], page["next_from_seq"], page["caught_up"]) == ([], 3, True)


def test_long_poll_ends_when_the_topic_is_deleted(api: Api, topic: str):
    api.put(topic)
    waiting = Background(
        lambda: api.refused(404, "topic_not_found", "POST", f"/v0/topics/{topic}/diff", {"wait_ms": 30_000})
    )
    wait_until_read(api, topic)
    api.drop(topic)
    waiting.result()


def test_many_waiting_readers_all_get_the_record(api: Api, topic: str):
    api.put(topic)
    waiting = [Background(lambda n=n: api.diff(topic, node=f"n{n}", wait_ms=30_000)) for n in range(8)]
    wait_until_read(api, topic)
    api.write(topic, "for all")
    assert [data(reader.result()) for reader in waiting] == [["for all"]] * 8


def test_long_poll_returns_a_tombstone_at_once(api: Api, topic: str):
    api.put(topic, cap_records=1)
    api.write(topic, 1, 2, tag="x")
    api.delete(topic, match="x")
    start = time.monotonic()
    page = api.diff(topic, wait_ms=30_000)
    assert time.monotonic() - start < 10
    assert (page["records"], page["tombstone"]["reason"]) == ([], "cap")


def test_stopping_server_answers_long_polls_first(start_server, connect, topic: str):
    server = start_server()
    api = connect(server)
    api.put(topic)
    waiting = Background(lambda: api.diff(topic, wait_ms=30_000))
    wait_until_read(connect(server), topic)
    server.terminate()
    page = waiting.result()
    assert (page["records"], page["caught_up"]) == ([], True)


def wait_until_read(api: Api, topic: str) -> None:
    """Wait for a long poll: a read sets the last read time of the topic."""
    eventually(lambda: api.state(topic)["last_read_ts"], lambda ts: ts is not None)


# --- the same question again


def test_repeated_poll_returns_the_current_answer(api: Api, topic: str):
    """Return a new query: the server caches answers to repeated polls, and this one cannot be cached."""
    blanks = iter(range(1, 1000))

    def check() -> None:
        for from_seq, limit in ((0, 0), (0, 1), (2, 1), (3, 5), (4, 1), (99, 1)):
            body = b'{"from_seq":%d,"limit":%d}' % (from_seq, limit)
            fresh = body.replace(b"}", b" " * next(blanks) + b"}")
            pages = [api.call("POST", f"/v0/topics/{topic}/diff", raw=raw).json() for raw in (body, body, fresh)]
            for page in pages:
                page.pop("performance")
            assert pages[0] == pages[1] == pages[2], (from_seq, limit)

    steps = [
        lambda: api.put(topic),
        lambda: api.write(topic, "a", "b", "c", tag="x"),
        lambda: api.write(topic, "d", tag="y"),
        lambda: api.delete(topic, match="y"),
        lambda: api.write(topic, "e", "f"),
        lambda: api.put(topic, cap_records=3),
        lambda: api.write(topic, "g"),
        lambda: api.delete(topic, before_seq=5),
        lambda: api.put(topic, cap_records=0, ttl_ms=86_400_000),
        lambda: api.put(topic, ttl_ms=0, priority=7),
        lambda: api.drop(topic),
        lambda: api.write(topic, "z"),
    ]
    for step in steps:
        step()
        if step is not steps[10]:
            check()
    api.drop(topic)
    assert api.call("POST", f"/v0/topics/{topic}/diff", {"from_seq": 0, "limit": 1}).status_code == 404


def test_repeated_poll_counts_as_a_read(api: Api, topic: str):
    api.write(topic, "a")
    for _ in range(3):
        seen = now_ms()
        api.diff(topic, from_seq=0, limit=1)
        assert api.state(topic)["last_read_ts"] >= seen - 1
