"""`GET /v0/watch/:wid`: frames, cursors, tombstones and reconnects."""

import time

import pytest

from tests.contract.api import Background
from tests.live.events import decode_id, encode_id, wait_for


def test_head_disables_proxy_buffering(live, topic):
    live.api.put(topic)
    events = live.watch(topic)
    assert events.status == 200
    assert events.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert events.headers["cache-control"] == "no-store"
    assert events.headers["connection"] == "keep-alive"
    assert events.headers["x-accel-buffering"] == "no"
    events.expect("caught-up")
    assert events.retries == [2000]
    assert abs(int(events.comments[0].removeprefix("hb ")) - time.time() * 1000) < 5_000


def test_stream_begins_with_an_id(live, topic):
    live.api.write(f"{topic}.a", 1, 2, 3)
    live.api.write(f"{topic}.b", 1)
    events = live.watch({f"{topic}.a": {"from_seq": 1}, f"{topic}.b": {"tail": True}})
    assert decode_id(events.opening()) == {f"{topic}.a": 1, f"{topic}.b": 1}


def test_connection_cut_before_the_first_frame_loses_nothing(live, topic):
    live.api.write(topic, 1, 2, 3)
    session = live.session(topic)
    events = live.open(session)
    last_id = events.opening()
    assert events.has_more()
    events.drop()
    [record] = live.open(session, last_id=last_id).expect("record")
    assert record.seqs == [1, 2, 3]


def test_frame_of_a_new_topic_that_was_cut_off_comes_again(live, topic):
    session = live.session({f"{topic}.*": {}})
    events = live.open(session)
    last_id = events.opening()
    live.api.write(f"{topic}.new", 1, 2)
    events.expect("record")
    events.drop()
    [record] = live.open(session, last_id=last_id).expect("record")
    assert record.seqs == [1, 2]


@pytest.mark.parametrize("start", [{"from_seq": 2, "epoch": 7}, {"from_seq": 9}])
def test_recreated_tombstone_that_was_cut_off_comes_again(live, topic, start):
    live.api.write(topic, 1, 2, 3)
    session = live.session({topic: start})
    events = live.open(session)
    last_id = events.opening()
    events.expect("tombstone", "record")
    events.drop()
    tombstone, record = live.open(session, last_id=last_id).expect("tombstone", "record")
    assert (tombstone.data["reason"], record.seqs) == ("recreated", [1, 2, 3])


def test_records_arrive_in_batches_with_their_cursor(live, topic):
    live.api.append(topic, [{"data": {"n": 1}, "tag": "t", "node": "w", "meta": {"k": 1}}, {"data": 2}])
    events = live.watch(topic)
    record, caught_up = events.expect("record", "caught-up")
    first, second = record.data.pop("records")
    assert record.data == {"topic": topic, "from_seq": 0, "to_seq": 2, "head_seq": 2}
    assert first == {"$seq": 1, "$ts": first["$ts"], "$node": "w", "data": {"n": 1}, "meta": {"k": 1}}
    assert second == {"$seq": 2, "$ts": second["$ts"], "data": 2}
    assert record.cursor == {topic: 2}
    assert (caught_up.data, caught_up.cursor) == ({"topic": topic, "head_seq": 2}, {topic: 2})


def test_later_writes_are_pushed(live, topic):
    live.api.write(topic, "old")
    events = live.watch({topic: {"tail": True}})
    events.expect("caught-up")
    live.api.write(topic, "new", "newer")
    [record] = events.expect("record")
    assert [each["data"] for each in record.data["records"]] == ["new", "newer"]
    assert record.data["from_seq"] == 1


def test_event_id_has_the_cursors_of_all_topics(live, topic):
    live.api.write(f"{topic}.a", 1)
    live.api.write(f"{topic}.b", 1, 2)
    events = live.watch(f"{topic}.a {topic}.b")
    frames = [*events.until("caught-up"), *events.until("caught-up")]
    assert frames[-1].cursor == {f"{topic}.a": 1, f"{topic}.b": 2}
    live.api.write(f"{topic}.a", 2)
    assert events.next().cursor == {f"{topic}.a": 2, f"{topic}.b": 2}


def test_many_topics_resume_exactly_from_a_numbered_id(live, topic):
    names = [f"{topic}.{n}" for n in range(70)]
    for name in names:
        live.api.write(name, 1)
    session = live.session(" ".join(names))
    events = live.open(session)
    seen = {frame.data["topic"] for frame in (events.next() for _ in range(20)) if frame.event == "record"}
    last_id = events.last_id
    events.drop()
    again = live.open(session, last_id=last_id)
    while len(seen) < 70:
        frame = again.next()
        if frame.event == "record":
            assert frame.data["topic"] not in seen
            seen.add(frame.data["topic"])


def test_frames_respect_limit_and_caught_up_follows_the_last(live, topic):
    live.api.write(topic, *range(5))
    events = live.watch(topic, limit=2)
    frames = events.until("caught-up")
    assert [frame.seqs for frame in frames[:-1]] == [[1, 2], [3, 4], [5]]
    live.api.write(topic, *range(5))
    frames = events.until("caught-up")
    assert [frame.seqs for frame in frames[:-1]] == [[6, 7], [8, 9], [10]]
    live.api.write(topic, 1)
    events.expect("record")
    live.api.write(topic, 1)
    events.expect("record")


def test_frame_respects_max_bytes_but_has_one_record(live, topic):
    live.api.write(topic, *["x" * 1000] * 4)
    frames = live.watch(topic, max_batch_bytes=2500).until("caught-up")
    assert [frame.seqs for frame in frames[:-1]] == [[1, 2], [3, 4]]
    frames = live.watch(topic, max_batch_bytes=1).until("caught-up")
    assert [frame.seqs for frame in frames[:-1]] == [[1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("fields", "keys"),
    [
        ({}, {"$seq", "$ts", "$node", "data", "meta"}),
        ({"include_tags": True}, {"$seq", "$ts", "$node", "$tag", "data", "meta"}),
        ({"include_meta": False}, {"$seq", "$ts", "$node", "data"}),
        ({"include_data": False}, {"$seq", "$ts", "$node"}),
        ({"include_data": False, "include_tags": True, "include_meta": True}, {"$seq", "$ts", "$node", "$tag", "meta"}),
    ],
)
def test_watcher_chooses_the_fields_of_a_record(live, topic, fields, keys):
    live.api.append(topic, [{"data": 1, "tag": "t", "node": "w", "meta": {"k": 1}}])
    [record] = live.watch(topic, **fields).expect("record")
    assert record.data["records"][0].keys() == keys


def test_own_records_are_skipped_and_the_cursor_advances(live, topic):
    live.api.append(topic, [{"data": 1}], node="me")
    live.api.append(topic, [{"data": 2}], node="you")
    mine, ours = live.watch(topic, node="me"), live.watch(topic, node=["me", "you"])
    [record, caught_up] = mine.expect("record", "caught-up")
    assert (record.seqs, caught_up.cursor) == ([2], {topic: 2})
    assert ours.expect("caught-up")[0].cursor == {topic: 2}
    live.api.append(topic, [{"data": node, "node": node} for node in ("me", "you", "them")])
    assert (mine.next().seqs, ours.next().seqs) == ([4, 5], [5])
    live.api.append(topic, [{"data": 1, "node": "them"}])
    assert (mine.next().seqs, ours.next().seqs) == ([6], [6])


def test_each_topic_has_its_own_filter(live, topic):
    for name in (f"{topic}.a", f"{topic}.b"):
        live.api.append(name, [{"data": 1, "tag": "x:1"}, {"data": 2, "tag": "y:1"}])
    events = live.watch({f"{topic}.a": {"filter": ["tag", "Glob", "x*"]}, f"{topic}.b": {"filter": "y:1"}})
    frames = [*events.until("caught-up"), *events.until("caught-up")]
    assert {frame.data["topic"]: frame.seqs for frame in frames if frame.event == "record"} == {
        f"{topic}.a": [1],
        f"{topic}.b": [2],
    }
    assert frames[-1].cursor == {f"{topic}.a": 2, f"{topic}.b": 2}


def test_strong_consistency_pushes_synced_records(live, topic):
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        name = f"{topic}.{durability}"
        live.api.put(name, durability=durability)
        live.api.write(name, 1)
        events = live.watch(name, consistency="strong")
        assert events.until("record")[-1].seqs == [1]
        live.api.write(name, 2)
        assert events.until("record")[-1].seqs == [2]


@pytest.mark.parametrize("name", ["a", "copies"])
def test_only_a_strong_watcher_waits_for_the_sync(start_live, tmp_path, name):
    """Also of a copy in a synced topic: a loss of power would take the record of the source and its copy."""
    live = start_live(data_dir=tmp_path / "data", sync_interval_ms=60_000)
    live.api.put("a")
    live.api.put("copies", durability="fsync")
    live.api.call("PUT", "/v0/routers/ab", {"source": "a", "dest": "copies"}).raise_for_status()
    strong, eventual = live.watch(name, consistency="strong"), live.watch(name)
    strong.expect("caught-up")
    eventual.expect("caught-up")
    live.api.write("a", 1)
    assert eventual.next().seqs == [1]
    assert strong.quiet(0.3)
    live.api.put("b", durability="fsync")  # its commit syncs the whole log
    live.api.write("b", 1)
    assert strong.next().seqs == [1]


# --- tombstones


def test_cursor_before_an_evicted_range_gets_a_tombstone(live, topic):
    live.api.put(topic, cap_records=3)
    live.api.write(topic, *range(10))
    tombstone, record, _ = live.watch({topic: {"from_seq": 2}}).expect("tombstone", "record", "caught-up")
    assert tombstone.data == {
        "topic": topic, "reason": "from_seq_too_old", "cause": "cap", "gap_from": 3, "gap_to": 7, "missed_estimate": 5,
        "earliest_seq": 8, "head_seq": 10,
    }  # fmt: skip
    assert tombstone.cursor == {topic: 7}
    assert record.seqs == [8, 9, 10]


def test_deleted_records_leave_no_tombstone(live, topic):
    live.api.write(topic, *range(5))
    live.api.delete(topic, before_seq=4)
    record, _ = live.watch(topic).expect("record", "caught-up")
    assert record.seqs == [4, 5]


def test_cursor_of_an_earlier_epoch_starts_over(live, topic):
    live.api.write(topic, 1, 2)
    epoch = live.api.state(topic)["epoch"]
    for options in ({"from_seq": 9}, {"from_seq": 1, "epoch": epoch - 1}):
        tombstone, record = live.watch({topic: options}).expect("tombstone", "record")
        assert tombstone.data["reason"] == "recreated"
        assert (tombstone.data["gap_from"], tombstone.data["gap_to"]) == (1, 2)
        assert tombstone.cursor == {topic: 0}
        assert record.seqs == [1, 2]
    assert live.watch({topic: {"from_seq": 1, "epoch": epoch}}).next().seqs == [2]


def test_deleted_topic_ends_while_other_topics_continue(live, topic):
    live.api.write(f"{topic}.a", 1, 2)
    live.api.put(f"{topic}.b")
    session = live.session({f"{topic}.a": {"tail": True}, f"{topic}.b": {}})
    events = live.open(session)
    events.expect("caught-up", "caught-up")
    live.api.drop(f"{topic}.a")
    [gone] = events.expect("topic-deleted")
    assert gone.data == {"topic": f"{topic}.a", "head_seq": 2, "reason": "deleted"}
    assert gone.cursor == {f"{topic}.a": 2, f"{topic}.b": 0}
    live.api.write(f"{topic}.a", "another epoch")
    live.api.write(f"{topic}.b", 1)
    assert events.next().data["topic"] == f"{topic}.b"
    events.close()
    again = live.open(session)
    assert again.next().event == "topic-deleted"
    assert again.next().event == "caught-up"
    assert live.watch(f"{topic}.a").next().seqs == [1]


@pytest.mark.parametrize("others", [0, 70])  # with many topics, ids have numbers in place of names
def test_deletion_that_a_pattern_watcher_did_not_read_is_reported_again(live, topic, others):
    for at in range(others):
        live.api.put(f"{topic}.other{at:02}")
    live.api.write(f"{topic}.a", 1, 2, 3)
    session = live.session(f"{topic}.*")
    events = live.open(session)
    events.expect("record", *["caught-up"] * (others + 1))
    seen = events.last_id
    live.api.drop(f"{topic}.a")
    live.api.write(f"{topic}.a", 4)
    events.expect("topic-deleted", "record")  # sent, and as if never read
    events.close()

    again = live.open(session, last_id=seen)
    [gone] = again.expect("topic-deleted")
    assert gone.data == {"topic": f"{topic}.a", "head_seq": 3, "reason": "deleted"}
    assert again.until("record")[-1].seqs == [1]
    again.close()
    live.open(session, last_id=again.last_id).expect("caught-up")


def test_topic_recreated_between_streams_is_reported_deleted(live, topic):
    live.api.write(topic, 1, 2)
    session = live.session(topic)
    live.api.drop(topic)
    live.api.write(topic, 1)
    [gone] = live.open(session).expect("topic-deleted")
    assert gone.data["head_seq"] == 2


# --- patterns


def test_pattern_follows_created_and_deleted_topics(live, topic):
    live.api.write(f"{topic}.a", 1)
    session = live.session(f"{topic}.*")
    events = live.open(session)
    events.expect("record", "caught-up")
    live.api.write(f"{topic}.b", 1, 2)
    record, _ = events.expect("record", "caught-up")
    assert (record.data["topic"], record.seqs) == (f"{topic}.b", [1, 2])
    live.api.drop(f"{topic}.b")
    events.expect("topic-deleted")
    live.api.write(f"{topic}.b", "again")
    record, _ = events.expect("record", "caught-up")
    assert [each["data"] for each in record.data["records"]] == ["again"]
    events.close()
    live.api.write(f"{topic}.c", 1)
    again = live.open(session, last_id=record.id)
    frames = [again.next() for _ in range(4)]
    assert [frame.seqs for frame in frames if frame.event == "record"] == [[1]]
    assert {frame.data["topic"] for frame in frames if frame.event == "caught-up"} == {f"{topic}.{x}" for x in "abc"}


def test_unseen_epoch_of_a_topic_is_delivered_completely(live, topic):
    live.api.write(f"{topic}.a", *range(9))
    session = live.session(f"{topic}.*")
    events = live.open(session)
    before = events.until("caught-up")[-1]
    live.api.drop(f"{topic}.a")
    live.api.write(f"{topic}.a", "new")
    events.until("record")
    events.drop()
    again = live.open(session, last_id=before.id)
    assert again.until("record")[-1].seqs == [1]


# --- reconnects


def test_session_continues_where_its_last_stream_ended(live, topic):
    live.api.write(topic, 1, 2)
    session = live.session(topic)
    with live.open(session) as events:
        events.expect("record", "caught-up")
    live.api.write(topic, 3)
    record, _ = live.open(session).expect("record", "caught-up")
    assert record.seqs == [3]


def test_last_event_id_moves_the_session_back_only(live, topic):
    live.api.write(topic, *range(6))
    session = live.session(topic, limit=2)
    with live.open(session) as events:
        first = events.next()
        events.until("caught-up")
    with live.open(session, last_id=first.id) as events:
        assert events.next().seqs == [3, 4]
        events.until("caught-up")
    with live.open(session, last_id=encode_id({topic: 999})) as events:
        events.expect("caught-up")
    live.api.write(topic, 7)
    assert live.open(session, last_id=encode_id({"other": 1})).next().seqs == [7]


def test_second_stream_takes_over_without_loss_or_repeats(live, topic):
    live.api.put(topic)
    session = live.session(topic)
    first = live.open(session)
    first.expect("caught-up")
    writer = Background(lambda: [live.api.write(topic, n) for n in range(200)])
    streams = [first]
    for _ in range(5):
        streams.append(live.open(session))
        streams[-1].next()
    writer.result()
    seen = []
    for events in streams[:-1]:
        *frames, last = events.rest()
        assert (last.event, last.data["code"]) == ("error", 409)
        seen += frames
    received = [seq for frame in seen if frame.event == "record" for seq in frame.seqs]
    assert len(received) == len(set(received))


def test_heartbeats_are_sent_only_when_idle(live, topic):
    live.api.put(topic)
    events = live.watch(topic, heartbeat_ms=1)  # clamped to a second
    events.expect("caught-up")
    started = time.monotonic()
    sent_ms = int(events.comment().removeprefix("hb "))
    assert 0.9 < time.monotonic() - started < 3
    assert abs(sent_ms - time.time() * 1000) < 2000
    until = time.monotonic() + 1.5
    beats = len(events.comments)
    while time.monotonic() < until:
        live.api.write(topic, 1)
        events.expect("record")
        time.sleep(0.1)
    assert len(events.comments) == beats


def test_client_that_shuts_its_side_frees_its_slot(live, topic):
    live.api.put(topic)
    before = live.metric("topics_sse_connections")
    events = live.watch(topic)
    events.expect("caught-up")
    assert live.metric("topics_sse_connections") == before + 1
    events.sock.shutdown(1)
    wait_for(lambda: live.metric("topics_sse_connections") == before)
    assert events.rest() == []


def test_stopping_server_sends_an_error_event(start_live):
    live = start_live()
    live.api.put("a")
    events = live.watch("a")
    events.expect("caught-up")
    live.server.terminate()
    [last] = events.rest()
    assert (last.event, last.data["code"]) == ("error", 503)
