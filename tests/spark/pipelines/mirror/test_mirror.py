"""Two servers that mirror each other: the same records on both, each once, and no echo."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.spark.pipelines.mirror.pairs import Pair, content, count_of, die, run, some
from tests.spark.processes import wait_for
from topics.client.request import Record, Tombstone
from topics.spark.pipelines import mirror as module
from topics.spark.pipelines.mirror import mirror
from topics.spark.pipelines.mirror_task import KEY, hops_of
from topics.spark.pipelines.run.report import RunReport


def test_both_ways_servers_hold_the_same_records_without_echoes(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.append(topic, some(2300, 1, "one"))
    pair.other.client.append(topic, some(1700, 2, "other"))

    report = run(spark, pair, topic, both_ways=True)

    assert content(pair.one.client, topic) == content(pair.other.client, topic)
    assert pair.one.client.topic(topic).count == pair.other.client.topic(topic).count == 4000
    there, back = report.topics
    assert (there.records, back.records) == (2300, 1700)
    assert (there.figures, back.figures) == ({"echoes": 1700}, {"echoes": 2300})
    assert (there.lag, back.lag, report.figures["lag"]) == (0, 0, 0)

    again = run(spark, pair, topic, both_ways=True)
    assert again.records == 0
    assert pair.one.client.topic(topic).head_seq == 4000


def test_lag_is_taken_when_the_report_is_made(here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch):
    pair.one.client.append(topic, some(20, 1, "one"))
    save_results = module.Link.save_results

    def save_late(*given: Any) -> None:
        save_results(*given)
        pair.one.client.append(topic, some(4, 2, "late"))

    monkeypatch.setattr(module.Link, "save_results", save_late)
    report = run(here, pair, topic)
    assert (report.topics[0].to_seq, report.topics[0].lag, report.figures["lag"]) == (20, 4, 4)


def test_prefix_and_names_are_both_copied(here: Any, pair: Pair, topic: str):
    for name in (f"{topic}.a", f"{topic}.b", f"other.{topic}"):
        pair.one.client.append(name, [{"data": 1}])
    report = mirror(
        source=pair.one.url, target=pair.other.url, topics=[f"other.{topic}"], prefix=f"{topic}.", spark=here
    )
    assert report.names == {f"{topic}.a", f"{topic}.b", f"other.{topic}"}


def test_copy_keeps_order_and_fields_and_names_its_origin(here: Any, pair: Pair, topic: str):
    sent = {"data": {"n": 1.50}, "node": "till-1", "tag": "web", "meta": {"trace": "abc"}}
    pair.one.client.append(topic, [sent, *({"data": n} for n in range(1500))])

    run(here, pair, topic)

    copies = [item for item in pair.other.client.read(topic, include_tags=True) if isinstance(item, Record)]
    first = copies[0]
    assert (bytes(first.data), first.node, first.tag) == (b'{"n":1.5}', "till-1", "web")
    meta = msgspec.json.decode(first.meta)
    original = next(iter(pair.one.client.read(topic)))
    assert isinstance(original, Record)
    [hop] = meta.pop(KEY)
    assert meta == {"trace": "abc"}
    assert (hop["seq"], hop["ts"], hop["epoch"]) == (1, original.ts, pair.one.client.topic(topic).epoch)
    assert [copy.value for copy in copies[1:]] == list(range(1500))


def test_gap_of_the_source_is_reported_and_recorded_at_the_target(here: Any, pair: Pair, topic: str):
    pair.one.client.put_topic(topic, cap_records=10)
    pair.one.client.append(topic, [{"data": n} for n in range(25)])
    pair.other.client.put_topic(topic)

    report = run(here, pair, topic)

    [gap] = report.topics[0].gaps
    assert (gap.from_seq, gap.to_seq, gap.reason) == (1, 15, "cap")
    reported, *copies = [item for item in pair.other.client.read(topic) if isinstance(item, Record)]
    assert reported.value == {"topic": topic, "gap_from": 1, "gap_to": 15, "reason": "cap"}
    assert msgspec.json.decode(reported.meta)["kind"] == "gap"
    assert [copy.value for copy in copies] == list(range(15, 25))


def test_first_copy_shows_the_gap_whose_record_the_target_evicted(here: Any, pair: Pair, topic: str):
    """The copy has the cap of its source, and one record more to hold: that record is the first to go."""
    pair.one.client.put_topic(topic, cap_records=10)
    pair.one.client.append(topic, [{"data": n} for n in range(25)])

    report = run(here, pair, topic, step_seqs=7)

    found = list(pair.other.client.read(topic))
    assert [(item.gap_from, item.gap_to) for item in found if isinstance(item, Tombstone)] == [(1, 1)]
    copies = [item for item in found if isinstance(item, Record)]
    hops = [hops_of(bytes(copy.meta))[-1] for copy in copies]
    assert [hop.seq for hop in hops] == list(range(16, 26))
    assert (report.gaps, report.topics[0].figures) == (1, {"lost_seqs": 15})


def test_created_topic_has_the_settings_of_its_source(here: Any, pair: Pair, topic: str):
    pair.one.client.put_topic(topic, cap_records=10, ttl_ms=3_600_000, discard="reject", durability="fsync")
    pair.one.client.append(topic, [{"data": 1}])

    run(here, pair, topic)

    config = pair.other.client.topic(topic).config
    assert (config.cap_records, config.ttl_ms, config.discard, config.durability) == (10, 3_600_000, "reject", "fsync")
    assert config.idempotency_window_ms == 7 * 24 * 3_600_000


def test_half_surrogate_pair_is_mirrored_across_a_restart(
    here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
):
    odd = b'"\\ud800x"'
    pair.one.client.append(topic, [msgspec.Raw(b'{"data":%b,"meta":{"k":%b}}' % (odd, odd)), {"data": 1}])
    with monkeypatch.context() as patch:
        patch.setattr(module.Link, "save_results", die)
        with pytest.raises(MemoryError):
            run(here, pair, topic, both_ways=True)

    for _ in range(2):
        run(here, pair, topic, both_ways=True)

    for side in pair:
        found = [item for item in side.client.read(topic) if isinstance(item, Record)]
        assert [bytes(item.data) for item in found] == [odd, b"1"]
        assert bytes(found[0].meta).startswith(b'{"k":%b' % odd)


def test_follow_copies_new_records_and_stops_cleanly(here: Any, pair: Pair, topic: str):
    stop = threading.Event()
    reports: list[RunReport] = []
    pair.one.client.append(topic, [{"data": -1}])
    following = threading.Thread(
        target=lambda: reports.append(run(here, pair, topic, both_ways=True, follow=True, stop=stop))
    )
    following.start()
    try:
        for number in range(30):
            pair.one.client.append(topic, some(50, number, "one"))
            pair.other.client.append(topic, some(30, 100 + number, "other"))
        wait_for(
            lambda: count_of(pair.one.client, topic) == count_of(pair.other.client, topic) == 1 + 30 * 80, "the mirror"
        )
    finally:
        stop.set()
        following.join(60)
    assert content(pair.one.client, topic) == content(pair.other.client, topic)
    [report] = reports
    assert report.state == "stopped"
    reported = [item.value for item in pair.other.client.read("sys:pipelines") if isinstance(item, Record)]
    assert reported[-1]["run_id"] == report.run_id
    assert reported[-1]["topics"][0]["topic"] == topic
