"""Two servers that mirror each other: the same records on both, each once, and no echo."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import msgspec
import pyarrow as pa
import pytest
from msgspec import structs
from pyspark.sql import SparkSession

from tests.conftest import SMALL_PARTS, ServerProcess, StartServer
from tests.spark.lakes import archive
from tests.spark.processes import wait_for
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record, Tombstone
from topics.lake import Lake
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.compact.driver import compact
from topics.spark.pipelines.mirror import driver as module
from topics.spark.pipelines.mirror.driver import mirror
from topics.spark.pipelines.mirror.provenance import KEY, LostSeqs, hops_of
from topics.spark.pipelines.mirror.server_identity import identity
from topics.spark.pipelines.mirror.task import MAX_ROUNDS
from topics.spark.pipelines.replay.driver import replay
from topics.spark.pipelines.run.failures import BadUsage, Failed
from topics.spark.pipelines.run.report import RunReport
from topics.spark.pipelines.run.trimmed import Watch
from topics.spark.source.plan import Span


class Side(NamedTuple):
    url: str
    client: Client


class Pair(NamedTuple):
    one: Side
    other: Side


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    directory = tmp_path_factory.mktemp("pair")
    running = [
        ServerProcess(directory / name, {"data_dir": directory / name / "data", **SMALL_PARTS})
        for name in ("one", "other")
    ]
    yield running
    for server in running:
        server.stop()


@pytest.fixture
def pair(servers: list[ServerProcess]) -> Iterator[Pair]:
    with Client(servers[0].url) as one, Client(servers[1].url) as other:
        yield Pair(Side(servers[0].url, one), Side(servers[1].url, other))


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A substitute for a Spark session: tasks run in this process."""
    monkeypatch.setattr(module, "run_on_executors", lambda spark, items, task, **rest: [task(item) for item in items])
    return object()


def content(client: Client, topic: str) -> Counter[str]:
    """Return the records of a topic, without the stamps of a mirror and the fields that a server assigns."""
    found: Counter[str] = Counter()
    for item in client.read(topic, include_tags=True):
        assert isinstance(item, Record)
        meta = msgspec.json.decode(item.meta) if item.meta else {}
        meta.pop(KEY, None)
        found[repr((item.node, item.tag, meta, bytes(item.data)))] += 1
    return found


def run(spark: SparkSession, pair: Pair, topic: str, **options: Any) -> RunReport:
    return mirror(source=pair.one.url, target=pair.other.url, topics=[topic], spark=spark, **options)


def some(count: int, seed: int, word: str) -> list[dict[str, Any]]:
    """Records of all kinds: with and without node, tag and meta, and some of them equal."""
    chance = random.Random(seed)
    found = []
    for at in range(count):
        record: dict[str, Any] = {"data": {word: at % 40, "text": 'ü "quoted" \\ '}}
        if chance.random() < 0.5:
            record["node"] = chance.choice(["till-1", "till-2"])
        if chance.random() < 0.5:
            record["tag"] = chance.choice(["a:1", "b\u00e4"])
        if chance.random() < 0.5:
            record["meta"] = {"trace": at, "deep": {"x": [1, None]}}
        found.append(record)
    return found


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


def test_copy_keeps_order_and_fields_and_names_its_origin(spark: SparkSession, pair: Pair, topic: str):
    sent = {"data": {"n": 1.50}, "node": "till-1", "tag": "web", "meta": {"trace": "abc"}}
    pair.one.client.append(topic, [sent, *({"data": n} for n in range(1500))])

    run(spark, pair, topic)

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


def test_gap_of_the_source_is_reported_and_recorded_at_the_target(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.put_topic(topic, cap_records=10)
    pair.one.client.append(topic, [{"data": n} for n in range(25)])
    pair.other.client.put_topic(topic)

    report = run(spark, pair, topic)

    [gap] = report.topics[0].gaps
    assert (gap.from_seq, gap.to_seq, gap.reason) == (1, 15, "cap")
    reported, *copies = [item for item in pair.other.client.read(topic) if isinstance(item, Record)]
    assert reported.value == {"topic": topic, "gap_from": 1, "gap_to": 15, "reason": "cap"}
    assert msgspec.json.decode(reported.meta)["kind"] == "gap"
    assert [copy.value for copy in copies] == list(range(15, 25))


def test_gap_survives_eviction_of_its_record_at_the_target(here: Any, pair: Pair, topic: str):
    """The copy has the cap of its source, and one record more to hold: that record is the first to go."""
    pair.one.client.put_topic(topic, cap_records=10)
    pair.one.client.append(topic, [{"data": n} for n in range(25)])

    report = run(here, pair, topic, step_seqs=7)

    found = list(pair.other.client.read(topic))
    assert [(item.gap_from, item.gap_to) for item in found if isinstance(item, Tombstone)] == [(1, 1)]
    copies = [item for item in found if isinstance(item, Record)]
    hops = [hops_of(bytes(copy.meta))[-1] for copy in copies]
    assert [hop.seq for hop in hops] == list(range(16, 26))
    assert hops[0].lost == LostSeqs(gap_from=1, gap_to=15, reason="cap")
    assert not any(hop.lost for hop in hops[1:])
    assert (report.gaps, report.topics[0].figures) == (1, {"lost_seqs": 15})


# --- a source that was trimmed


def trim(client: Client, lake: Path, topic: str, upto: int) -> None:
    """As `archive --trim` does it."""
    archived_epoch = archive(client, lake, topic, upto=upto, trim=True)
    client.archived(topic, seq=upto, epoch=archived_epoch.epoch)


def test_topic_trimmed_before_the_copy_waits_for_its_lake(
    here: Any, pair: Pair, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pair.one.client.append(topic, [{"data": n} for n in range(20)])
    run(here, pair, topic)
    pair.one.client.append(topic, [{"data": n} for n in range(20, 50)])
    lake = tmp_path / "lake"
    trim(pair.one.client, lake, topic, upto=40)

    report = run(here, pair, topic)

    [row] = report.topics
    assert (report.ok, row.records, row.lag, row.figures) == (False, 0, 30, {"held_at": 21})
    assert (row.from_seq, row.to_seq) == (21, 40)
    assert "seqs 21 to 40 were removed before they were copied, and are in a lake" in report.warnings[0]
    assert "--lake" in (report.next or "")
    command = ["pipeline", "mirror", "--from", pair.one.url, "--to", pair.other.url, "--topic", topic]
    assert main([*command, "--dry-run"]) == 1
    reported = capsys.readouterr().out
    assert "seqs 21 to 40 were removed" in reported
    assert f"next: run topics pipeline mirror --from {pair.one.url} --to {pair.other.url} with --lake DIR" in reported

    healed = run(here, pair, topic, lake=str(lake))

    assert (healed.ok, healed.records, healed.warnings) == (True, 30, [])
    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(50))


def test_skip_trimmed_copies_the_rest_without_the_lake(here: Any, pair: Pair, topic: str, tmp_path: Path):
    pair.one.client.append(topic, [{"data": n} for n in range(9)])
    trim(pair.one.client, tmp_path / "lake", topic, upto=4)
    pair.one.client.delete(topic, before_seq=6)
    other_lake = tmp_path / "other"
    Lake(str(other_lake)).create()
    assert "in another lake" in run(here, pair, topic, lake=str(other_lake)).warnings[0]

    report = run(here, pair, topic, skip_trimmed=True)

    assert (report.ok, report.records) == (True, 4)
    assert "seqs 1 to 4 were removed" in report.warnings[0], "the fifth is in no lake"
    with pytest.raises(BadUsage, match="is not a lake"):
        run(here, pair, topic, lake=str(tmp_path / "none"))


@pytest.mark.parametrize("archived", [False, True])
def test_records_deleted_at_the_front_are_reported_and_block_nothing(
    here: Any, pair: Pair, topic: str, tmp_path: Path, archived: bool
):
    """A lake that never trimmed the topic has nothing to do with it."""
    pair.one.client.append(topic, [{"data": n} for n in range(9)])
    if archived:
        archive(pair.one.client, tmp_path, topic)
    pair.one.client.delete(topic, before_seq=5)

    report = run(here, pair, topic)

    assert (report.ok, report.records) == (True, 5)
    assert "seqs 1 to 4 were removed before they were copied; the copy does not have them" in report.warnings[0]
    assert run(here, pair, topic).warnings == []


def test_trim_during_a_step_leaves_out_nothing(
    here: Any, pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The plan is made before the front is trimmed, and the executor runs after it."""
    client, lake = pair.one.client, tmp_path / "lake"
    client.append(topic, [{"data": n, "tag": f"t{n % 2}"} for n in range(30)])
    client.delete(topic, match="t1", before_seq=11)

    def trimmed_first(spark: Any, tasks: list[Any], do: Any, **rest: Any) -> list[Any]:
        trim(client, lake, topic, upto=20)
        return [do(task) for task in tasks]

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_on_executors", trimmed_first)
        report = run(here, pair, topic, step_seqs=25)
    assert (report.ok, report.records) == (False, 0)

    run(here, pair, topic, lake=str(lake))

    expected = [0, 2, 4, 6, 8, *range(10, 30)]
    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == expected


@pytest.mark.parametrize("cut_at", [5, 10])
def test_records_after_a_trim_wait_for_the_lake(pair: Pair, topic: str, tmp_path: Path, cut_at: int):
    """Seqs 1 to 10 were read, then 11 to 20 were trimmed; 25 was deleted before, and does not end the read."""
    client = pair.one.client
    client.append(topic, [{"data": n, "tag": f"t{n}"} for n in range(1, 31)])
    client.delete(topic, match="t25")
    trim(client, tmp_path / "lake", topic, upto=20)
    span = Span(server=pair.one.url, topic=topic, epoch=client.topic(topic).epoch, start=1, stop=31)

    def looked_at(seqs: list[int]) -> tuple[list[int], int]:
        rows = pa.RecordBatch.from_pydict({"seq": seqs, "gap_to": pa.nulls(len(seqs), pa.int64())})
        batches = [rows.slice(0, cut_at), rows.slice(cut_at)]
        watch = Watch(structs.replace(span, start=seqs[0]), ConnectionOptions(servers=(pair.one.url,)))
        found = [seq for batch in watch.over(iter(batches)) for seq in batch.column("seq").to_pylist()]
        return found, watch.trimmed_at

    live = [21, 22, 23, 24, 26, 27, 28, 29, 30]
    assert looked_at([*range(1, 11), *live]) == (list(range(1, 11)), 11)
    assert looked_at(live) == (live, 0)


def test_created_topic_has_the_settings_of_its_source(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.put_topic(topic, cap_records=10, ttl_ms=3_600_000, discard="reject", durability="fsync")
    pair.one.client.append(topic, [{"data": 1}])

    run(spark, pair, topic)

    config = pair.other.client.topic(topic).config
    assert (config.cap_records, config.ttl_ms, config.discard, config.durability) == (10, 3_600_000, "reject", "fsync")
    assert config.idempotency_window_ms == 7 * 24 * 3_600_000


def test_recreated_topic_is_copied_from_its_first_seq(
    spark: SparkSession, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """Even where the run that noticed it dies before it has done anything."""
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(spark, pair, topic)
    pair.one.client.drop_topic(topic)
    pair.one.client.append(topic, [{"data": 100 + n} for n in range(3)])
    with monkeypatch.context() as patch:
        patch.setattr(module, "run_on_executors", _die)
        with pytest.raises(MemoryError):
            run(spark, pair, topic)

    report = run(spark, pair, topic)

    values = [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)]
    assert values[:5] == list(range(5))
    assert values[5]["reason"] == "recreated"
    assert values[6:] == [100, 101, 102]
    assert [gap.reason for gap in report.topics[0].gaps] == ["recreated"]


def _die(*arguments: object, **options: object) -> None:
    raise MemoryError


def test_empty_recreated_topic_is_reported_once(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 1}])
    run(spark, pair, topic)
    pair.one.client.drop_topic(topic)
    pair.one.client.put_topic(topic)
    for _ in range(2):
        run(spark, pair, topic)
    assert pair.other.client.topic(topic).head_seq == 2


def test_emptied_target_is_filled_again(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(spark, pair, topic)
    pair.one.client.append(topic, [{"data": 5}])
    run(spark, pair, topic)
    pair.other.client.drop_topic(topic)

    report = run(spark, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(6))
    assert any("copied again" in text for text in report.warnings)


@pytest.mark.parametrize("steps", [1, 2])
def test_deleted_target_is_filled_again_without_new_records(here: Any, pair: Pair, topic: str, steps: int):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic, step_seqs=5 // steps)
    pair.other.client.drop_topic(topic)

    report = run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(5))
    assert any("copied again" in text for text in report.warnings)
    assert run(here, pair, topic).records == 0


def test_target_recreated_by_another_writer_is_filled_again(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    pair.other.client.drop_topic(topic)
    pair.other.client.append(topic, [{"data": "own"}] * 30)
    pair.one.client.append(topic, [{"data": 5}])

    for _ in range(2):
        run(here, pair, topic)

    found = [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)]
    assert found == ["own"] * 30 + list(range(6))


def test_target_with_copies_under_another_epoch_is_not_copied_twice(here: Any, pair: Pair, topic: str):
    """As one that came back from a backup does."""
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    copies = [item for item in pair.other.client.read(topic) if isinstance(item, Record)]
    pair.other.client.drop_topic(topic)
    pair.other.client.append(topic, [{"data": copy.data, "meta": copy.meta} for copy in copies])
    pair.one.client.append(topic, [{"data": 5}])

    report = run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == list(range(6))
    assert (report.records, report.warnings) == (1, [])


def test_records_deleted_at_the_target_stay_deleted(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n} for n in range(5)])
    run(here, pair, topic)
    pair.other.client.delete(topic, before_seq=6)
    pair.one.client.append(topic, [{"data": 5}])

    run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == [5]


def test_half_surrogate_pair_is_mirrored_across_a_restart(
    here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
):
    odd = b'"\\ud800x"'
    pair.one.client.append(topic, [msgspec.Raw(b'{"data":%b,"meta":{"k":%b}}' % (odd, odd)), {"data": 1}])
    with monkeypatch.context() as patch:
        patch.setattr(module.Link, "save_results", _die)
        with pytest.raises(MemoryError):
            run(here, pair, topic, both_ways=True)

    for _ in range(2):
        run(here, pair, topic, both_ways=True)

    for side in pair:
        found = [item for item in side.client.read(topic) if isinstance(item, Record)]
        assert [bytes(item.data) for item in found] == [odd, b"1"]
        assert bytes(found[0].meta).startswith(b'{"k":%b' % odd)


def test_record_passes_a_chain_but_never_returns(
    spark: SparkSession, pair: Pair, server: ServerProcess, client: Client, topic: str
):
    """Three servers in a circle: it ends where it began."""
    pair.one.client.append(topic, [{"data": n} for n in range(7)])
    run(spark, pair, topic)
    for source, target in ((pair.other.url, server.url), (server.url, pair.one.url)):
        mirror(source=source, target=target, topics=[topic], spark=spark)

    assert client.topic(topic).count == 7
    assert pair.one.client.topic(topic).count == 7

    last = next(iter(client.read(topic)))
    assert isinstance(last, Record)
    assert [hop["seq"] for hop in msgspec.json.decode(last.meta)[KEY]] == [1, 1]


def test_only_local_leaves_out_records_of_a_third_server(
    spark: SparkSession, pair: Pair, server: ServerProcess, client: Client, topic: str
):
    client.append(topic, [{"data": "third"}])
    mirror(source=server.url, target=pair.one.url, topics=[topic], spark=spark)
    pair.one.client.append(topic, [{"data": "own"}])

    report = run(spark, pair, topic, only_local=True)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == ["own"]
    assert report.topics[0].figures == {"foreign": 1}


def with_router(spark: SparkSession, url: str, source: str, into: str) -> None:
    body = {"source": source, "dest": into, "from_seq": 0}
    assert httpx.put(f"{url}/v0/routers/{source}", json=body, timeout=10).is_success
    with Client(url) as client:
        wait_for(lambda: _count(client, into) == 2, "the router's copies")


def by_replay(spark: SparkSession, url: str, source: str, into: str) -> None:
    replay(url=url, source_url=url, topic=source, into=into, spark=spark)


def by_compact(spark: SparkSession, url: str, source: str, into: str) -> None:
    compact(url=url, topic=source, into=into, spark=spark)


@pytest.mark.parametrize("derive", [with_router, by_replay, by_compact])
def test_derived_record_is_not_an_echo(
    here: Any, spark: SparkSession, pair: Pair, topic: str, derive: Callable[[SparkSession, str, str, str], None]
):
    """A record derived by a router, replay or compaction is new in its topic, whatever servers its meta names."""
    derived = f"{topic}.out"
    pair.one.client.append(topic, [{"data": "born here", "tag": "a"}])
    pair.other.client.append(topic, [{"data": "born there", "tag": "b"}])
    run(here, pair, topic, both_ways=True)
    derive(spark, pair.one.url, topic, derived)

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


def test_copy_without_a_topic_belongs_to_its_own_topic(here: Any, pair: Pair, topic: str):
    """As earlier versions wrote them."""
    pair.one.client.append(topic, [{"data": 1}])
    run(here, pair, topic)
    hop = {"at": identity(pair.other.client), "epoch": 1, "seq": 1}
    pair.one.client.append(topic, [{"data": 2, "meta": {KEY: [hop]}}])
    assert run(here, pair, topic).topics[0].figures == {"echoes": 1}


def test_record_of_a_target_router_does_not_count_as_arrived(
    here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """A run that was killed asks the target how far it came; a record made of a copy has a list like a copy's."""
    pair.one.client.append(topic, [{"data": n} for n in range(3)])
    with monkeypatch.context() as patch:
        patch.setattr(module, "run_on_executors", _die)
        with pytest.raises(MemoryError):
            run(here, pair, topic)
    hop = {"at": identity(pair.one.client), "topic": "another", "epoch": pair.one.client.topic(topic).epoch, "seq": 9}
    pair.other.client.append(topic, [{"data": "made there", "meta": {KEY: [hop]}}])

    run(here, pair, topic)

    assert [item.value for item in pair.other.client.read(topic) if isinstance(item, Record)] == ["made there", 0, 1, 2]


def test_nodes_of_one_side_are_filtered_by_the_server(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": n, "node": "till-1"} for n in range(4)])
    run(spark, pair, topic)

    report = run(spark, pair, topic, both_ways=True, source_nodes=["till-1"])

    assert pair.one.client.topic(topic).count == 4
    assert report.topics[-1].figures == {}, "the echoes were not even read"


def test_rejected_record_becomes_a_gap_and_blocks_nothing(
    spark: SparkSession, pair: Pair, topic: str, start_server: StartServer
):
    strict = start_server(max_meta_bytes=256)
    records: list[dict[str, Any]] = [{"data": n} for n in range(9)]
    records[4]["meta"] = {"long": "x" * 200}
    pair.one.client.append(topic, records)

    report = mirror(source=pair.one.url, target=strict.url, topics=[topic], spark=spark)

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


def test_queues_and_system_topics_are_not_mirrored(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.put_topic(f"{topic}.jobs", type="queue")
    pair.one.client.append(f"{topic}.jobs", [{"data": 1}])
    pair.one.client.append(f"{topic}.log", [{"data": 1}])

    report = mirror(source=pair.one.url, target=pair.other.url, prefix=topic, spark=spark)

    assert [row.topic for row in report.topics] == [f"{topic}.log"]
    assert any("queue" in text for text in report.warnings)
    everything = mirror(source=pair.one.url, target=pair.other.url, prefix="", spark=spark, dry_run=True)
    assert not [row for row in everything.topics if row.topic.startswith("sys:")]


def test_log_is_not_copied_into_a_queue(here: Any, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 1}])
    pair.other.client.put_topic(topic, type="queue")
    with pytest.raises(BadUsage, match=f"{topic} is a log in {pair.one.url} and a queue in {pair.other.url}"):
        run(here, pair, topic)
    assert pair.other.client.topic(topic).head_seq == 0


def test_full_target_is_named_with_the_remedy(here: Any, pair: Pair, topic: str, monkeypatch: pytest.MonkeyPatch):
    minutes = SimpleNamespace(monotonic=count(start=0, step=61).__next__, sleep=lambda pause_s: None)
    monkeypatch.setattr("topics.spark.sink.writers.time", minutes)
    pair.one.client.append(topic, [{"data": n} for n in range(9)])
    pair.other.client.put_topic(topic, cap_records=4, discard="reject")
    with pytest.raises(Failed, match=f"topic {topic} on {pair.other.url} is full .* raise its cap_records"):
        run(here, pair, topic)


def test_server_is_not_mirrored_to_itself(pair: Pair, topic: str):
    elsewhere = pair.one.url.replace("127.0.0.1", "localhost")
    pair.one.client.append(topic, [{"data": 1}])
    with pytest.raises(BadUsage, match="both called"):
        mirror(source=pair.one.url, target=elsewhere, topics=[topic])


def test_concurrent_run_of_the_same_mirror_is_detected(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 0}])
    stop = threading.Event()
    failures: list[BaseException] = []

    def follow() -> None:
        try:
            run(spark, pair, topic, follow=True, stop=stop)
        except Failed as error:
            failures.append(error)

    following = threading.Thread(target=follow)
    following.start()
    try:
        wait_for(lambda: _count(pair.other.client, topic) == 1, "the mirror")
        pair.one.client.append(topic, [{"data": 1}])
        wait_for(lambda: _count(pair.other.client, topic) == 2, "the mirror")
        while not failures:
            pair.one.client.append(topic, [{"data": 2}])
            try:
                run(spark, pair, topic)
            except Failed as error:
                failures.append(error)
    finally:
        stop.set()
        following.join(60)
    assert "another run" in str(failures[0])


def test_follow_copies_new_records_and_stops_cleanly(spark: SparkSession, pair: Pair, topic: str):
    stop = threading.Event()
    reports: list[RunReport] = []
    pair.one.client.append(topic, [{"data": -1}])
    following = threading.Thread(
        target=lambda: reports.append(run(spark, pair, topic, both_ways=True, follow=True, stop=stop))
    )
    following.start()
    try:
        for number in range(30):
            pair.one.client.append(topic, some(50, number, "one"))
            pair.other.client.append(topic, some(30, 100 + number, "other"))
        wait_for(
            lambda: _count(pair.one.client, topic) == _count(pair.other.client, topic) == 1 + 30 * 80, "the mirror"
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


def _count(client: Client, topic: str) -> int:
    return next((row.count for row in client.topics(topic) if row.topic == topic), 0)


def test_wrong_server_names_are_refused(spark: SparkSession, pair: Pair, topic: str):
    pair.one.client.append(topic, [{"data": 1}])
    run(spark, pair, topic)
    with pytest.raises(BadUsage, match="is called"):
        mirror(source=pair.one.url, target=pair.other.url, topics=[topic], source_name="berlin")
