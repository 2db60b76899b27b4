"""Writes: how a record is stored, what is refused, and that a refusal leaves nothing behind."""

import pytest

from tests.engine.harness import append, objects, open_engine, put, read, record, write
from tests.simulated.clock import SimClock
from topics.errors import Code, TopicsError
from topics.model.records import Limits
from topics.model.topic import ConfigPatch


def refused(act) -> Code:
    with pytest.raises(TopicsError) as caught:
        act()
    return caught.value.code


def test_a_record_is_stored_in_the_form_its_readers_get():
    engine = open_engine(SimClock(ms=77))
    append(engine, "a", record('{"k": 1.50}', tag="t", node="n", meta='{"h":1}'))
    assert b"".join(read(engine, "a").parts) == b'{"$seq":1,"$ts":77,"$node":"n","data":{"k": 1.50},"meta":{"h":1}},'


@pytest.mark.parametrize(
    "data", ["null", "0", "-1.0e+5", '""', '"\\u00e9\\/"', '{"a":1,"a":2}', "[]", "1.000000000000000001"]
)
def test_data_is_kept_token_for_token(data):
    engine = open_engine(SimClock(ms=5))
    append(engine, "a", record(data))
    assert b"".join(read(engine, "a").parts) == b'{"$seq":1,"$ts":5,"data":%b},' % data.encode()


def test_raw_line_breaks_between_tokens_become_spaces():
    engine = open_engine(SimClock(ms=5))
    append(engine, "a", record("[1,\r\n2]", meta='{\n"m":1}'))
    assert b"".join(read(engine, "a").parts) == b'{"$seq":1,"$ts":5,"data":[1,  2],"meta":{ "m":1}},'


def test_seqs_are_contiguous_across_writes_and_batches():
    engine = open_engine()
    landed = [append(engine, "a", *[record()] * n) for n in (1, 5, 2)]
    assert [(done.first, done.last, done.head) for done in landed] == [(1, 1, 1), (2, 6, 6), (7, 8, 8)]


def test_the_first_write_creates_the_topic_with_the_config_it_brings():
    engine = open_engine()
    assert append(engine, "a", config=ConfigPatch(cap_records=7)).created
    assert engine.topic("a").config.cap_records == 7
    assert not append(engine, "a", config=ConfigPatch(cap_records=9)).created
    assert engine.topic("a").config.cap_records == 7


def test_a_write_that_must_not_create_finds_no_topic():
    engine = open_engine()
    assert refused(lambda: engine.append("a", write(create=False))) is Code.TOPIC_NOT_FOUND
    assert refused(lambda: engine.append("a", write(config=ConfigPatch(auto_create=False)))) is Code.TOPIC_NOT_FOUND
    assert append(engine, "a", config=ConfigPatch(auto_create=False), create=True).created


def test_a_record_without_a_node_takes_the_batch_s():
    engine = open_engine()
    append(engine, "a", record(node="own"), record(), node="batch")
    append(engine, "a", record(), node="batch")
    assert [found["$node"] for found in objects(read(engine, "a"))] == ["own", "batch", "batch"]


def test_null_meta_counts_as_none_and_an_empty_one_does_not():
    engine = open_engine()
    append(engine, "a", record(meta="null"), record(meta="{}"))
    assert [found.get("meta") for found in objects(read(engine, "a"))] == [None, {}]


def test_commit_times_never_go_backwards():
    clock = SimClock(ms=100)
    engine = open_engine(clock)
    append(engine, "a")
    clock.set(ms=40)
    append(engine, "a")
    clock.set(ms=101)
    append(engine, "a")
    assert [found["$ts"] for found in objects(read(engine, "a"))] == [100, 100, 101]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (write(*[record()] * 4), Code.BATCH_TOO_LARGE),
        (write(record(tag="é" * 5)), Code.INVALID_REQUEST),
        (write(record(node="n" * 9)), Code.INVALID_REQUEST),
        (write(node="n" * 9), Code.INVALID_REQUEST),
        (write(record(meta="[]")), Code.INVALID_REQUEST),
        (write(record(meta='{"long":"' + "x" * 20 + '"}')), Code.INVALID_REQUEST),
        (write(record('"' + "x" * 63 + '"')), Code.RECORD_TOO_LARGE),
        (write(record('"' + "x" * 59 + '"', meta='{"":""}')), Code.RECORD_TOO_LARGE),
        (write(idempotency_key=""), Code.INVALID_REQUEST),
        (write(idempotency_key="k" * 257), Code.INVALID_REQUEST),
    ],
)
def test_a_record_past_a_limit_is_refused_and_creates_nothing(request_, code):
    limits = Limits(max_batch_records=3, max_record_bytes=64, max_meta_bytes=20, max_tag_bytes=8, max_node_bytes=8)
    engine = open_engine(limits=limits)
    assert refused(lambda: engine.append("a", request_)) is code
    engine.flush()
    assert engine.topics == {}


def test_sizes_at_the_limit_pass():
    limits = Limits(max_batch_records=3, max_record_bytes=64, max_meta_bytes=20, max_tag_bytes=8, max_node_bytes=8)
    request = write(
        record('"' + "x" * 62 + '"', tag="éééé", node="n" * 8), record(meta='{"l":"' + "x" * 12 + '"}'), record()
    )
    assert append(open_engine(limits=limits), "a", *request.records).last == 3


def test_meta_may_have_64_keys_and_not_one_more():
    def meta(n: int) -> str:
        return "{" + ",".join(f'"{key}":0' for key in range(n)) + "}"

    engine = open_engine()
    append(engine, "a", record(meta=meta(64)))
    assert refused(lambda: engine.append("a", write(record(meta=meta(65))))) is Code.INVALID_REQUEST


def test_an_empty_batch_is_refused():
    request = write()
    request.records = []
    assert refused(lambda: open_engine().append("a", request)) is Code.INVALID_REQUEST


def test_a_full_topic_that_rejects_takes_all_or_nothing():
    engine = open_engine()
    put(engine, "a", cap_records=3, discard="reject")
    append(engine, "a", record(), record())
    assert refused(lambda: engine.append("a", write(record(), record()))) is Code.TOPIC_FULL
    append(engine, "a", record())
    assert (engine.topic("a").head, engine.topic("a").count) == (3, 3)


def test_a_full_topic_counts_what_is_still_staged():
    engine = open_engine()
    put(engine, "a", cap_records=3, discard="reject")
    engine.append("a", write(record(), record()))
    assert refused(lambda: engine.append("a", write(record(), record()))) is Code.TOPIC_FULL


def test_a_byte_cap_that_rejects_counts_rendered_bytes():
    engine = open_engine(SimClock(ms=5))
    size_bytes = len(b'{"$seq":1,"$ts":5,"data":1},')
    put(engine, "a", cap_bytes=2 * size_bytes, discard="reject")
    append(engine, "a")
    append(engine, "a")
    assert engine.topic("a").bytes == 2 * size_bytes
    assert refused(lambda: engine.append("a", write())) is Code.TOPIC_FULL


@pytest.mark.parametrize("discard", ["old", "reject"])
def test_a_record_larger_than_the_whole_topic_can_never_be_written(discard):
    engine = open_engine()
    put(engine, "a", cap_bytes=60, discard=discard)
    with pytest.raises(TopicsError) as caught:
        engine.append("a", write(record('"' + "x" * 60 + '"')))
    assert (caught.value.code, caught.value.code.retryable) == (Code.RECORD_TOO_LARGE, False)


@pytest.mark.parametrize("cap", [{"cap_records": 3}, {"cap_bytes": 100}])
def test_batch_larger_than_a_rejecting_topic_can_never_be_written(cap):
    engine = open_engine()
    put(engine, "a", discard="reject", **cap)
    with pytest.raises(TopicsError) as caught:
        engine.append("a", write(*[record()] * 4))
    assert (caught.value.code, caught.value.code.retryable) == (Code.BATCH_TOO_LARGE, False)
    [name] = cap
    assert caught.value.detail is not None
    assert (caught.value.detail["limit"], caught.value.detail["max"]) == (name, cap[name])
    put(engine, "a", discard="old")
    append(engine, "a", *[record()] * 4)  # it evicts the first of its own records


@pytest.mark.parametrize(("n", "code"), [(1, Code.RECORD_TOO_LARGE), (3, Code.BATCH_TOO_LARGE)])
@pytest.mark.parametrize("discard", ["old", "reject"])
def test_write_larger_than_the_whole_quota_can_never_be_done(n, code, discard):
    engine = open_engine(limits=Limits(max_total_bytes=100))
    put(engine, "a", discard=discard)
    with pytest.raises(TopicsError) as caught:
        engine.append("a", write(*[record('"' + "x" * (120 // n) + '"')] * n))
    assert (caught.value.code, caught.value.code.retryable) == (code, False)
    assert caught.value.detail is not None
    assert (caught.value.detail["limit"], caught.value.detail["max"]) == ("max_total_bytes", 100)


def test_the_server_s_byte_quota_counts_all_topics():
    engine = open_engine(SimClock(ms=5), limits=Limits(max_total_bytes=60))
    append(engine, "a")
    append(engine, "b")
    with pytest.raises(TopicsError) as caught:
        engine.append("a", write())
    assert (caught.value.code, caught.value.detail) == (Code.THROTTLED, {"limit": "max_total_bytes", "max": 60})
    assert refused(lambda: engine.append("new", write())) is Code.THROTTLED


@pytest.mark.parametrize("name", ["", "-a", ".a", "a b", "a/b", "a\n", "é", "x" * 256])
def test_a_write_to_a_name_that_is_none_is_refused(name):
    assert refused(lambda: open_engine().append(name, write())) is Code.INVALID_REQUEST


@pytest.mark.parametrize("node", ["p7", "", "n" * 40, 'quoted " name', "ü" * 20])
@pytest.mark.parametrize("tag", [None, "red", "t" * 100])
def test_single_record_with_a_node_is_stored_like_one_of_a_batch(node: str, tag: str | None):
    """One record with a node has a fast path, which must not differ."""
    alone, together = open_engine(), open_engine()
    append(alone, "t", record('{"a":1}', tag=tag), node=node)
    append(together, "t", record('{"a":1}', tag=tag), record("2"), node=node)
    assert read(alone, "t", limit=1).parts == read(together, "t", limit=1).parts
    assert [one.columns.node_at(0) for one in (alone.topic("t").open, together.topic("t").open)] == [node] * 2
    assert [one.columns.tag_at(0) for one in (alone.topic("t").open, together.topic("t").open)] == [tag] * 2


def test_single_record_with_a_node_is_checked_like_one_of_a_batch():
    engine = open_engine(limits=Limits(max_node_bytes=4, max_record_bytes=100))
    for fields in ({"node": "n" * 5}, {"node": "ü" * 3}):
        with pytest.raises(TopicsError):
            append(engine, "t", record("1"), **fields)
    with pytest.raises(TopicsError):
        append(engine, "t", record(f'"{"x" * 100}"'), node="n")
    append(engine, "t", record('{"a":\n1}'), node="n")
    assert b"\n" not in bytes(engine.topic("t").open.rendered)
