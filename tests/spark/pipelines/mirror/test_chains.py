"""Records that pass several servers, routers and pipelines: copied once, and never back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess
from tests.spark.pipelines.mirror.pairs import Pair, count_of, die, run
from tests.spark.processes import wait_for
from topics.client import Client
from topics.client.request import Record
from topics.spark.pipelines.compact import compact
from topics.spark.pipelines.mirror import identity, mirror
from topics.spark.pipelines.mirror_task import KEY, MAX_ROUNDS, hops_of
from topics.spark.pipelines.replay import replay
from topics.spark.pipelines.run.tasks import Tasks


def test_record_passes_a_chain_but_never_returns(
    here: Any, pair: Pair, server: ServerProcess, client: Client, topic: str
):
    """Three servers in a circle: it ends where it began."""
    pair.one.client.append(topic, [{"data": n} for n in range(7)])
    run(here, pair, topic)
    for source, target in ((pair.other.url, server.url), (server.url, pair.one.url)):
        mirror(source=source, target=target, topics=[topic], spark=here)

    assert client.topic(topic).count == 7
    assert pair.one.client.topic(topic).count == 7

    last = next(iter(client.read(topic)))
    assert isinstance(last, Record)
    assert [hop["seq"] for hop in msgspec.json.decode(last.meta)[KEY]] == [1, 1]


def test_only_local_leaves_out_records_of_a_third_server(
    here: Any, pair: Pair, server: ServerProcess, client: Client, topic: str
):
    client.append(topic, [{"data": "third"}])
    mirror(source=server.url, target=pair.one.url, topics=[topic], spark=here)
    pair.one.client.append(topic, [{"data": "own"}])

    report = run(here, pair, topic, only_local=True)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == ["own"]
    assert report.topics[0].figures == {"foreign": 1}


def by_replay(spark: SparkSession, url: str, source: str, into: str) -> None:
    replay(url=url, source_url=url, topic=source, into=into, spark=spark)


def by_compact(spark: SparkSession, url: str, source: str, into: str) -> None:
    compact(url=url, topic=source, into=into, spark=spark)


def test_forwarded_record_is_not_an_echo(here: Any, pair: Pair, topic: str):
    derived = f"{topic}.out"

    def forward() -> None:
        body = {"source": topic, "dest": derived, "from_seq": 0}
        assert httpx.put(f"{pair.one.url}/v0/routers/{topic}", json=body, timeout=10).is_success
        wait_for(lambda: count_of(pair.one.client, derived) == 2, "the router's copies")

    check_derived(here, pair, topic, derived, forward)


@pytest.mark.torture
@pytest.mark.parametrize("derive", [by_replay, by_compact])
def test_replayed_or_compacted_record_is_not_an_echo(
    here: Any, spark: SparkSession, pair: Pair, topic: str, derive: Callable[[SparkSession, str, str, str], None]
):
    derived = f"{topic}.out"
    check_derived(here, pair, topic, derived, lambda: derive(spark, pair.one.url, topic, derived))


def check_derived(here: Any, pair: Pair, topic: str, derived: str, derive: Callable[[], None]) -> None:
    """Check that a derived record is new in its topic, whatever servers its meta names."""
    pair.one.client.append(topic, [{"data": "born here", "tag": "a"}])
    pair.other.client.append(topic, [{"data": "born there", "tag": "b"}])
    run(here, pair, topic, both_ways=True)
    derive()

    assert run(here, pair, derived, only_local=True, dry_run=True).topics[0].records == 2
    there, back = run(here, pair, derived, both_ways=True).topics

    for side in pair:
        found = [item for item in side.client.read(derived) if isinstance(item, Record)]
        assert [item.value for item in found] == ["born here", "born there"]
    assert [(hop.at, hop.topic) for hop in hops_of(bytes(found[1].meta))] == [
        (identity(pair.other.client), topic), (identity(pair.one.client), derived),
    ]  # fmt: skip
    assert (there.records, there.figures, back.records, back.figures) == (2, {}, 0, {"echoes": 2})


def test_circling_records_stop_with_a_warning(here: Any, pair: Pair, topic: str):
    """Simulate a circle of two routers: the returning records are appended by the test."""
    pair.one.client.append(topic, [{"data": "round"}])
    for at in range(MAX_ROUNDS + 1):
        report = run(here, pair, topic)
        assert report.topics[0].records == (at < MAX_ROUNDS)
        *_, last = pair.other.client.read(topic)
        assert isinstance(last, Record)
        hops = hops_of(bytes(last.meta))
        back = [{"at": hop.at, "topic": hop.topic, "epoch": hop.epoch, "seq": hop.seq} for hop in hops]
        pair.one.client.append(topic, [{"data": "round", "meta": {KEY: back}}])
    assert report.topics[0].figures == {"circling": 1}
    assert "came back 8 times" in report.warnings[0]


def test_record_of_a_target_router_does_not_count_as_arrived(
    here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """A run that was killed asks the target how far it came; a record made of a copy has a list like a copy's."""
    pair.one.client.append(topic, [{"data": n} for n in range(3)])
    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "run", die)
        with pytest.raises(MemoryError):
            run(here, pair, topic)
    hop = {"at": identity(pair.one.client), "topic": "another", "epoch": pair.one.client.topic(topic).epoch, "seq": 9}
    pair.other.client.append(topic, [{"data": "made there", "meta": {KEY: [hop]}}])

    run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == ["made there", 0, 1, 2]
