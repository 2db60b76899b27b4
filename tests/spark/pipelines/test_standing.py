"""Lakes and servers that do not belong together: nothing is archived, trimmed or found to be in order by mistake.

No session is started: what tasks would do is done here, which takes a tenth of the time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ServerProcess, StartServer
from tests.spark.archives import Written, archived_epoch_of, check_exact
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Tombstone
from topics.lake import ArchivedEpoch, Gap, Lake
from topics.lake.lake import LakeErasure
from topics.lake.layout import topic_folder
from topics.lake.rewrite import Erasure
from topics.model.records import TagMatch
from topics.spark.options import read_options
from topics.spark.pipelines.archive import state
from topics.spark.pipelines.archive.driver import archive
from topics.spark.pipelines.audit import Stretch, audit, describe, look
from topics.spark.pipelines.run.job import Failed
from topics.spark.pipelines.run.report import RunReport
from topics.spark.source.read import DataLoss
from topics.spark.source.readers import TopicsReader

Run = Callable[..., RunReport]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def run(here: Any, server: ServerProcess, lake: Lake, topic: str) -> Run:
    def archived(**given: Any) -> RunReport:
        return archive(**{"url": server.url, "lake": lake.path, "topics": [topic], "spark": here, **given})

    return archived


@pytest.fixture
def look_for(here: Any, server: ServerProcess, lake: Lake, topic: str) -> Run:
    def audited(**given: Any) -> RunReport:
        return audit(**{"url": server.url, "lake": lake.path, "topics": [topic], "spark": here, **given})

    return audited


def unexplained(report: RunReport) -> list[tuple[int, int]]:
    assert report.ok == (not report.topics[-1].figures["unexplained"])
    found: list[tuple[int, int]] = report.topics[-1].figures["unexplained"]
    return found


# --- a lake that is not the one


def test_unmounted_lake_is_not_created_again(run: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(10)
    run(trim=True)
    away = shutil.move(lake.path, f"{lake.path}.away")
    written.numbers(1)
    for options in ({}, {"trim": True}, {"dry_run": True}):
        refusal = r"up to 10 were reported .* as archived, but .* has seqs up to 0: .* not mounted"
        with pytest.raises(Failed, match=refusal) as failed:
            run(**options)
        assert "--new-lake" in str(failed.value.next)
    assert not Path(lake.path).exists()
    shutil.move(away, lake.path)
    run(trim=True)
    assert check_exact(lake, written) == 11


def test_lake_copy_from_before_a_trim_is_refused_and_audited(
    run: Run, look_for: Run, client: Client, lake: Lake, topic: str
):
    written = Written(client, topic)
    written.numbers(10)
    run(trim=True)
    shutil.copytree(lake.path, f"{lake.path}.old")
    written.numbers(10)
    run(trim=True)
    shutil.rmtree(lake.path)
    shutil.move(f"{lake.path}.old", lake.path)
    report = look_for()
    assert unexplained(report) == [(11, 20)]
    assert "  unexplained: seqs 11 to 20" in describe(report)
    written.numbers(2)
    with pytest.raises(Failed, match=r"up to 20 were reported .* as archived, but .* has seqs up to 10"):
        run()
    assert unexplained(look_for()) == [(11, 20)]


def test_seqs_evicted_for_another_lake_are_unexplained(
    run: Run, look_for: Run, client: Client, lake: Lake, topic: str, tmp_path: Path
):
    Written(client, topic).numbers(20)
    run(lake=str(tmp_path / "other"))
    client.put_topic(topic, cap_records=5)
    lake.create()
    assert unexplained(look_for()) == [(1, 15)]


def test_new_lake_begins_with_a_gap_for_missing_records(
    run: Run, look_for: Run, client: Client, lake: Lake, topic: str, tmp_path: Path
):
    written = Written(client, topic)
    written.numbers(10)
    run(lake=str(tmp_path / "other"), trim=True)
    written.numbers(10)
    client.delete(topic, match="user-3")
    run(lake=str(tmp_path / "other"))
    written.numbers(5)
    before = {record.seq for record in client.read(topic) if not isinstance(record, Tombstone)}
    run(new_lake=True)
    archived_epoch = archived_epoch_of(lake, written)
    lost = {seq for gap in archived_epoch.gaps for seq in range(gap.first, gap.last + 1)}
    assert lost == set(range(1, min(before)))  # later ones were deleted on request
    assert {gap.reason for gap in archived_epoch.gaps} == {"other_lake"}
    assert (archived_epoch.gaps[0].first, archived_epoch.gaps[0].last, archived_epoch.archived_to) == (1, 10, 25)
    check_exact(lake, written, deleted=set(range(1, 21)) - before - lost)
    assert look_for().ok
    assert rows_of(client, lake.path, topic, startingOffsets=f'{{"{topic}":1}}')[0] == (1, 10, "other_lake")
    assert run().records == 0  # and is a lake like any other from now on


@pytest.fixture
def copied_back(run: Run, client: Client, lake: Lake, topic: str, tmp_path: Path) -> Written:
    """Seqs 1 to 20 are archived and trimmed, then the lake is copied; 21 to 40 as well, then the copy replaces it.

    41 to 45 are live, except for 43, which was deleted on request.
    """
    written = Written(client, topic)
    written.numbers(20)
    run(trim=True)
    shutil.copytree(lake.path, tmp_path / "copy")
    written.numbers(20)
    run(trim=True)
    written.numbers(5)
    client.delete(topic, seqs=[43])
    assert [seq for seq, *_ in rows_of(client, lake.path, topic)] == [
        *range(1, 43), 44, 45
    ]  # fmt: skip
    shutil.rmtree(lake.path)
    shutil.copytree(tmp_path / "copy", lake.path)
    return written


def rows_of(client: Client, lake: str, topic: str, **options: str) -> list[tuple[int, int | None, str | None]]:
    """Return the rows of a batch read."""
    given = {"url": client.url, "subscribe": topic, "lake": lake, "failOnDataLoss": "false", **options}
    reader = TopicsReader(read_options(given))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [(row["seq"], row["gap_to"], row["reason"]) for batch in batches for row in batch.to_pylist()]


def test_records_missing_in_an_older_copy_are_a_gap(
    copied_back: Written, look_for: Run, client: Client, lake: Lake, topic: str, tmp_path: Path
):
    shown = [(seq, None, None) for seq in (*range(1, 21), 41, 42, 44, 45)]
    shown.insert(20, (21, 40, "other_lake"))  # type: ignore[arg-type]
    assert rows_of(client, lake.path, topic) == shown
    assert rows_of(client, lake.path, topic, startingOffsets=f'{{"{topic}":31}}')[0] == (31, 40, "other_lake")
    with pytest.raises(DataLoss, match=r"seqs 21 to 40 .* \(other_lake\); .* an older copy, or"):
        rows_of(client, lake.path, topic, failOnDataLoss="true")
    assert unexplained(look_for()) == [(21, 40)]

    Lake(str(tmp_path / "empty")).create()
    assert rows_of(client, str(tmp_path / "empty"), topic)[0] == (1, 40, "other_lake")


def test_lake_without_its_last_trim_is_readable_and_reported(
    run: Run, look_for: Run, client: Client, lake: Lake, topic: str
):
    written = Written(client, topic)
    written.numbers(20)
    run(trim=True, merge_files=0)
    written.numbers(3)
    commits = sorted((Path(lake.path) / topic_folder(topic) / "_delta_log").glob("*.json"))
    assert b"topics/trimmed" in commits[-1].read_bytes()
    commits[-1].unlink()

    fresh = Lake(lake.path)
    assert archived_epoch_of(fresh, written).trimmed_to == 0
    assert [seq for seq, *_ in rows_of(client, lake.path, topic)] == list(range(1, 24))
    assert [seq for seq, _, _ in rows_of(client, lake.path, topic)] == list(range(1, 24))
    report = look_for()
    assert report.ok
    assert f"topic {topic}: the server has a report of a trim up to seq 20" in describe(report)

    run(trim=True)
    assert archived_epoch_of(Lake(lake.path), written).trimmed_to == 23
    assert "a report of a trim" not in describe(look_for())


def test_concurrent_archivers_accept_the_same_lake(
    run: Run, client: Client, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """One run commits and reports to the server after the other has read the lake and before it asks the server."""
    written = Written(client, topic)
    written.numbers(10)
    run()
    written.numbers(10)
    real, other = Client.topic, Lake(lake.path)
    turns: list[int] = []

    def slow(self: Client, name: str) -> Any:
        if not turns:
            turns.append(1)
            run(lake=other.path)
        return real(self, name)

    monkeypatch.setattr(Client, "topic", slow)
    run()
    assert turns
    assert check_exact(lake, written) == 20


def test_command_has_the_option(server: ServerProcess, here: Any, client: Client, lake: Lake, topic: str):
    Written(client, topic).numbers(3)
    client.archived(topic, seq=2, epoch=client.topic(topic).epoch)
    command = ["pipeline", "archive", "--url", server.url, "--topic", topic, "--lake", lake.path, "--dry-run"]
    assert main(command) == 1
    assert main([*command, "--new-lake"]) == 0


def test_folder_without_a_table_is_no_topic(run: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(3)
    run()
    (Path(lake.path) / "empty").mkdir()
    written.numbers(3)
    run()
    assert check_exact(lake, written) == 6


# --- a server that is not the one


def set_back(lake: Lake, written: Written, seqs: int) -> None:
    """The lake as it would be had the server been set back: with records that the topic has not, or has differently."""
    from tests.lake.making import records
    from topics.lake import Change, write_files

    at = archived_epoch_of(lake, written).archived_to
    adds = write_files(lake.storage, written.topic, written.epoch, [records(at + 1, at + seqs)])
    change = Change(op="archive", topic=written.topic, epoch=written.epoch, adds=adds, covered=(at + 1, at + seqs))
    lake.commit(lake.table(written.topic).state(), [change])


def test_topic_that_ends_before_its_archive_is_an_error(run: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(10)
    run()
    set_back(lake, written, 5)
    for trim in (False, True):
        with pytest.raises(Failed, match=r"ends at seq 10, .* up to 15 .* had acknowledged, or its directory was set"):
            run(trim=trim)
    assert client.topic(topic).count == 10


def test_seqs_assigned_twice_are_neither_archived_nor_trimmed(run: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(10)
    run()
    set_back(lake, written, 5)
    written.numbers(5)
    with pytest.raises(Failed, match=r"seq 11 of topic .* differs in ts, .* set back and written to again"):
        run(trim=True)
    assert client.topic(topic).count == 15
    assert archived_epoch_of(lake, written).trimmed_to == 0
    written.numbers(5)
    with pytest.raises(Failed, match="differs in ts"):
        run()
    assert archived_epoch_of(lake, written).archived_to == 15


# --- files


def spoiled(lake: Lake, written: Written, number: int) -> str:
    """One file with fewer rows than were written to it."""
    file = archived_epoch_of(lake, written).files[number]
    path = Path(lake.path) / file.path
    pq.write_table(pq.read_table(path, partitioning=None).slice(0, 5), path)
    return path.name


def test_damaged_file_stops_trims_but_not_archiving(run: Run, look_for: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    for _ in range(5):
        written.numbers(10)
        run(merge_files=0)
    name = spoiled(lake, written, 2)
    for trim in (False, True):
        written.numbers(1)
        with pytest.raises(Failed, match=f"{name} has [0-9]+ bytes, but [0-9]+ were written"):
            run(merge_files=2, trim=trim)
    archived_epoch = archived_epoch_of(lake, written)
    assert (archived_epoch.archived_to, archived_epoch.trimmed_to, client.topic(topic).count) == (52, 0, 52)
    report = look_for()
    assert (report.ok, report.figures["damaged_files"], report.figures["unexplained"]) == (False, 1, 0)


def test_uncommitted_file_beside_the_records_is_a_warning(
    run: Run, look_for: Run, client: Client, lake: Lake, topic: str
):
    written = Written(client, topic)
    written.numbers(5)
    run()
    path = Path(lake.path) / archived_epoch_of(lake, written).files[0].path
    shutil.copy(path, path.with_name(path.name.replace(".parquet", "0.parquet")))
    report = look_for()
    assert (report.ok, report.figures["stray_files"]) == (True, 1)
    assert "1 file in the lake is in no version of a table" in report.warnings[0]
    assert check_exact(lake, written) == 5


def test_missing_version_fails_the_audit_with_a_remedy(run: Run, look_for: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    for _ in range(3):
        written.numbers(5)
        run()
    (Path(lake.path) / topic_folder(topic) / "_delta_log" / f"{2:020d}.json").unlink()
    for command in (run, look_for):
        with pytest.raises(Failed, match=re.escape(topic_folder(topic))):
            command()


def test_seqs_in_two_files_are_reported_and_compared(
    run: Run, client: Client, lake: Lake, topic: str, server: ServerProcess
):
    from topics.spark.options import ConnectionOptions

    written = Written(client, topic)
    written.numbers(10)
    run()
    [file] = archived_epoch_of(lake, written).files
    table = pq.read_table(Path(lake.path) / file.path, partitioning=None)
    changed = table.set_column(table.schema.get_field_index("data"), "data", pa.array(["666"] * len(table)))
    pq.write_table(changed.slice(6, 3), Path(lake.path) / "second.parquet")
    size = (Path(lake.path) / "second.parquet").stat().st_size
    second = msgspec.structs.replace(file, path="second.parquet", first=7, last=9, rows=3, bytes=size)
    found = look(
        Stretch(
            lake=lake.path, connection=ConnectionOptions(server=server.url), first=1, last=10,
            archived=ArchivedEpoch(topic=topic, epoch=written.epoch, files=(file, second), archived_to=10),
        )
    )  # fmt: skip
    assert found.doubled == [(7, 9)]
    assert (found.both, found.differing, found.counts["live"]) == (10, 0, 10)


def test_gap_ledger_has_the_reason_of_a_new_lake(run: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(4)
    client.archived(topic, seq=4, epoch=written.epoch)
    client.delete(topic, before_seq=3)
    run(new_lake=True)
    [gap] = archived_epoch_of(lake, written).gaps
    assert Gap(gap.first, gap.last, gap.reason, 0) == Gap(1, 2, "other_lake", 0)
    assert lake.ledger().to_pylist()[0]["reason"] == "other_lake"


def test_two_runs_with_a_new_lake_archive_each_record_once(
    run: Run, client: Client, lake: Lake, topic: str, monkeypatch: pytest.MonkeyPatch
):
    """The second run commits, and removes the files of the first as dead, before the first has read them again."""
    written = Written(client, topic)
    written.numbers(4)
    client.archived(topic, seq=4, epoch=written.epoch)
    archive_spans, others = state.archive_spans, [lambda: run(new_lake=True)]

    def overtaken(*given: Any, **options: Any) -> list[state.Done]:
        done = archive_spans(*given, **options)
        if others:
            others.pop()()
        return done

    monkeypatch.setattr(state, "archive_spans", overtaken)
    report = run(new_lake=True)
    assert report.ok
    check_exact(lake, written)


def test_record_erased_from_the_lake_stops_only_the_trim(run: Run, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(10)
    run()
    LakeErasure(lake, [topic], lambda *of: Erasure(match=TagMatch("Eq", "none"), seqs=[9])).commit()
    written.numbers(5)
    run(merge_files=2)
    assert archived_epoch_of(lake, written).archived_to == 15
    with pytest.raises(Failed, match=r"seq 9 of topic .* is not in the lake"):
        run(trim=True)
    assert client.topic(topic).count == 15


def test_server_set_back_is_noticed_before_and_after_it_grows(
    run: Run, start_server: StartServer, lake: Lake, topic: str, tmp_path: Path
):
    def write(server: ServerProcess, count: int) -> Written:
        with Client(server.url) as client:
            written = Written(client, topic)
            written.numbers(count)
        return written

    first = start_server(data_dir=tmp_path / "data")
    write(first, 10)
    first.stop()
    shutil.copytree(tmp_path / "data", tmp_path / "earlier")
    later = start_server(data_dir=tmp_path / "data")
    written = write(later, 5)
    run(url=later.url)
    earlier = start_server(data_dir=tmp_path / "earlier")
    for trim in (False, True):
        with pytest.raises(Failed, match="ends at seq 10, but the lake has archived seqs up to 15"):
            run(url=earlier.url, trim=trim)
    assert write(earlier, 8).epoch == written.epoch
    for trim in (False, True):
        with pytest.raises(Failed, match=r"seq 11 of topic .* differs in ts"):
            run(url=earlier.url, trim=trim)
    with Client(earlier.url) as client:
        assert client.topic(topic).count == 18
    assert archived_epoch_of(lake, written).archived_to == 15
