"""What a mirror leaves out, refuses or reports: queues, full targets, wrong names, concurrent runs."""

from __future__ import annotations

import threading
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import StartServer
from tests.spark.pipelines.mirror.pairs import Pair, count_of, run
from tests.spark.processes import wait_for
from topics.client import Client
from topics.client.request import Record
from topics.spark.failures import BadUsage, Failed
from topics.spark.pipelines.mirror import mirror
from topics.spark.pipelines.run.report import RunReport


def test_rejected_record_becomes_a_gap_and_blocks_nothing(here: Any, pair: Pair, topic: str, start_server: StartServer):
    strict = start_server(max_meta_bytes=256)
    records: list[dict[str, Any]] = [{"data": n} for n in range(9)]
    records[4]["meta"] = {"long": "x" * 200}
    pair.one.client.append(topic, records)

    report = mirror(source=pair.one.url, target=strict.url, topics=[topic], spark=here)

    with Client(strict.url) as client:
        values = [item.value for item in client.read(topic) if isinstance(item, Record)]
    assert values[:4] + values[5:] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert (values[4]["gap_from"], values[4]["gap_to"]) == (5, 5)
    assert "refused" in values[4]["reason"]
    assert [gap.from_seq for gap in report.topics[0].gaps] == [5]


def test_dry_run_reports_and_changes_nothing(here: Any, pair: Pair, topic: str):
    """Deleted records count zero, a gap counts as one record, and a record of the target is an echo."""
    pair.one.client.put_topic(topic, cap_records=20)
    pair.one.client.append(topic, [{"data": n, "tag": f"t{n % 2}"} for n in range(25)])
    pair.one.client.delete(topic, match="t1")

    def shown() -> RunReport:
        before = {row.topic: row.head_seq for row in pair.other.client.topics()}
        report = run(here, pair, topic, both_ways=True, step_seqs=4, dry_run=True)
        assert {row.topic: row.head_seq for row in pair.other.client.topics()} == before
        return report

    [there] = shown().topics
    assert (there.from_seq, there.to_seq, there.records) == (1, 25, 11)
    assert [(gap.from_seq, gap.to_seq) for gap in there.gaps] == [(1, 6)]
    assert there.would == [f"create topic {topic} in {pair.other.url}"]
    done = run(here, pair, topic)
    assert (done.topics[0].records, done.topics[0].gaps) == (there.records, there.gaps)
    pair.other.client.append(topic, [{"data": "own"}])
    [there, back] = [row for row in shown().topics if row.to_seq or row.lag is not None]
    assert (there.records, back.records, back.figures, back.would) == (0, 1, {"echoes": 11}, [])


def test_queues_and_system_topics_are_not_mirrored(here: Any, pair: Pair, topic: str):
    pair.one.client.put_topic(f"{topic}.jobs", type="queue")
    pair.one.client.append(f"{topic}.jobs", [{"data": 1}])
    pair.one.client.append(f"{topic}.log", [{"data": 1}])

    report = mirror(source=pair.one.url, target=pair.other.url, prefix=topic, spark=here)

    assert [row.topic for row in report.topics] == [f"{topic}.log"]
    assert any("queue" in text for text in report.warnings)
    everything = mirror(source=pair.one.url, target=pair.other.url, prefix="", spark=here, dry_run=True)
    assert not [row for row in everything.topics if row.topic.startswith("sys:")]


def test_log_is_not_copied_into_a_queue(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 1}])
    pair.other.client.put_topic(topic, type="queue")
    with pytest.raises(BadUsage, match=f"{topic} is a log in {pair.one.url} and a queue in {pair.other.url}"):
        run(here, pair, topic)
    assert pair.other.client.topic(topic).head_seq == 0


def test_full_target_is_named_with_the_remedy(here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch):
    minutes = SimpleNamespace(monotonic=count(start=0, step=61).__next__, sleep=lambda pause_s: None)
    monkeypatch.setattr("topics.spark.sink.chunks.time", minutes)
    pair.one.client.append(topic, [{"data": n} for n in range(9)])
    pair.other.client.put_topic(topic, cap_records=4, discard="reject")
    with pytest.raises(Failed, match=f"topic {topic} on {pair.other.url} is full .* raise its cap_records"):
        run(here, pair, topic)


def test_server_is_not_mirrored_to_itself(pair: Pair, topic: str):
    elsewhere = pair.one.url.replace("127.0.0.1", "localhost")
    pair.one.client.append(topic, [{"data": 1}])
    with pytest.raises(BadUsage, match="both called"):
        mirror(source=pair.one.url, target=elsewhere, topics=[topic])


def test_concurrent_run_of_the_same_mirror_is_detected(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 0}])
    stop = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            run(here, pair, topic, follow=True, stop=stop)
        except Failed as error:
            failures.append(error)

    following = threading.Thread(target=follow)
    following.start()
    try:
        wait_for(lambda: count_of(pair.other.client, topic) == 1, "the mirror")
        pair.one.client.append(topic, [{"data": 1}])
        wait_for(lambda: count_of(pair.other.client, topic) == 2, "the mirror")
        while not failures:
            pair.one.client.append(topic, [{"data": 2}])
            try:
                run(here, pair, topic)
            except Failed as error:
                failures.append(error)
    finally:
        stop.set()
        following.join(60)
    assert "another run" in str(failures[0])


def test_wrong_server_names_are_refused(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 1}])
    run(here, pair, topic)
    with pytest.raises(BadUsage, match="is called"):
        mirror(source=pair.one.url, target=pair.other.url, topics=[topic], source_name="berlin")
