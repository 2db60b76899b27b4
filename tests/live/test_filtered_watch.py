"""Watches with a filter on fields: skipped records move cursors, and a search that pauses goes on."""

from __future__ import annotations

from tests.live.conftest import Live

WANTED = {"filter": ["data.id", "Eq", 7]}


def test_long_runs_of_skipped_records_do_not_stall_a_watch(live: Live, topic: str) -> None:
    # Each record has the text that the search looks for, so that all are decoded: in several frames.
    note = [{"data": {"id": 8, "note": "id 7 " * 40}}] * 1000
    live.api.append(topic, [{"data": {"id": 7.0}}])
    for _ in range(15):
        live.api.append(topic, note)
    live.api.append(topic, [{"data": {"id": 7}}])
    events = live.watch({topic: WANTED})
    frames = events.until("caught-up")
    assert [seq for frame in frames if frame.event == "record" for seq in frame.seqs] == [1, 15_002]
    assert frames[-1].cursor == {topic: 15_002}
    live.api.append(topic, note[:3])
    live.api.append(topic, [{"data": {"id": 70e-1}}])
    [*_, frame] = events.until("record")
    assert (frame.seqs, frame.cursor) == ([15_006], {topic: 15_006})


def test_watch_resumes_with_its_filter_and_reports_each_gap(live: Live, topic: str) -> None:
    live.api.put(topic, cap_records=10)
    live.api.append(topic, [{"data": {"id": 7, "n": n}} for n in range(5)])
    first = live.watch({topic: WANTED})
    frames = first.until("caught-up")
    assert [seq for frame in frames if frame.event == "record" for seq in frame.seqs] == [1, 2, 3, 4, 5]
    cursor = frames[-1].id
    live.api.append(topic, [{"data": {"id": n % 10}} for n in range(20)])
    again = live.watch({topic: {"filter": WANTED["filter"]}}, cursor=cursor)
    frames = again.until("caught-up")
    [gap] = [frame.data for frame in frames if frame.event == "tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["cause"]) == (6, 15, "cap")
    assert [seq for frame in frames if frame.event == "record" for seq in frame.seqs] == [23]
    assert frames[-1].cursor == {topic: 25}


def test_filter_of_a_consumer_counts_skipped_records_as_processed(live: Live, topic: str) -> None:
    live.api.append(topic, [{"data": {"id": n}} for n in range(10)])
    page = live.api.diff(topic, consumer="billing", **WANTED)
    assert ([record["$seq"] for record in page["records"]], page["next_from_seq"]) == ([8], 10)
    page = live.api.diff(topic, consumer="billing", commit=True, **WANTED)
    assert (page["records"], page["committed_seq"]) == ([], 10)


def test_long_poll_wakes_for_a_matching_record_only(live: Live, topic: str) -> None:
    live.api.append(topic, [{"data": {"id": 1}}])
    page = live.api.diff(topic, wait_ms=50, **WANTED)
    assert (page["records"], page["next_from_seq"], page["performance"]["records_scanned"]) == ([], 1, 1)


def test_deleted_records_are_left_out_while_a_filter_matches_them(live: Live, topic: str) -> None:
    live.api.append(topic, [{"data": {"id": 7}, "tag": "a" if n % 2 else "b"} for n in range(6)])
    live.api.delete(topic, match="a")
    page = live.api.diff(topic, **WANTED)
    assert ([record["$seq"] for record in page["records"]], page["next_from_seq"]) == ([1, 3, 5], 6)
