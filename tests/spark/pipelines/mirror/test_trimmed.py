"""A mirror whose source was trimmed: the records come from its lake, or the topic waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from tests.spark.lakes import archive
from tests.spark.pipelines.mirror.pairs import Pair, run
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.lake import Lake
from topics.spark.failures import BadUsage
from topics.spark.options import ConnectionOptions
from topics.spark.pipelines.run.tasks import Tasks
from topics.spark.pipelines.run.trimmed import Watch
from topics.spark.source.plan import Span


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
def test_records_deleted_at_the_front_block_nothing(here: Any, pair: Pair, topic: str, tmp_path: Path, archived: bool):
    """A lake that never trimmed the topic has nothing to do with it."""
    pair.one.client.append(topic, [{"data": n} for n in range(9)])
    if archived:
        archive(pair.one.client, tmp_path, topic)
    pair.one.client.delete(topic, before_seq=5)

    report = run(here, pair, topic)

    assert (report.ok, report.records) == (True, 5)
    assert report.warnings == []


def test_trim_during_a_step_leaves_out_nothing(
    here: Any, pair: Pair, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The plan is made before the front is trimmed, and the executor runs after it."""
    client, lake = pair.one.client, tmp_path / "lake"
    client.append(topic, [{"data": n, "tag": f"t{n % 2}"} for n in range(30)])
    client.delete(topic, match="t1", before_seq=11)

    def trimmed_first(self: Any, tasks: list[Any], do: Any, **rest: Any) -> list[Any]:
        trim(client, lake, topic, upto=20)
        return [do(task) for task in tasks]

    with monkeypatch.context() as patch:
        patch.setattr(Tasks, "run", trimmed_first)
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
        watch = Watch(structs.replace(span, start=seqs[0]), ConnectionOptions(server=pair.one.url))
        found = [seq for batch in watch.over(iter(batches)) for seq in batch.column("seq").to_pylist()]
        return found, watch.trimmed_at

    live = [21, 22, 23, 24, 26, 27, 28, 29, 30]
    assert looked_at([*range(1, 11), *live]) == (list(range(1, 11)), 11)
    assert looked_at(live) == (live, 0)
