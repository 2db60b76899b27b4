"""Topics to a lake: exact, whatever happens to the topics meanwhile.

The first test archives with Spark. The others run its tasks in this process, which takes a tenth of the time.
"""

from __future__ import annotations

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess
from tests.spark.archives import Written, archived_epoch_of, check_exact, listed
from tests.spark.processes import wait_for
from topics.client import Client
from topics.client.request import Record
from topics.lake import Lake
from topics.spark.pipelines.archive.driver import _ArchiveRun, archive
from topics.spark.pipelines.run.job import BadUsage, Failed
from topics.spark.pipelines.run.report import Progress, RunReport


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def run(here: Any, server: ServerProcess, lake: Lake, topic: str) -> Any:
    """Archive the topic of the test by default."""

    def archived(**given: Any) -> RunReport:
        which = {} if {"topics", "prefix", "pattern"} & given.keys() else {"topics": [topic]}
        return archive(url=server.url, lake=lake.path, spark=here, **which, **given)

    return archived


def test_topic_is_archived_once_and_then_only_new_records(
    spark: SparkSession, server: ServerProcess, client: Client, lake: Lake, topic: str
):
    def run() -> RunReport:
        return archive(url=server.url, lake=lake.path, topics=[topic], spark=spark)

    written = Written(client, topic)
    written.numbers(2500)
    assert run().records == 2500
    assert check_exact(lake, written) == 2500
    assert run().records == 0
    written.numbers(10)
    report = run()
    [row] = report.topics
    assert (report.state, row.from_seq, row.to_seq, row.records, row.lag) == ("done", 2501, 2510, 10, 0)
    assert check_exact(lake, written) == 2510


def test_lag_is_taken_when_the_report_is_made(run: Any, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch):
    """Records written after the round has read the heads count as lag as well."""
    written = Written(client, topic)
    written.numbers(5)
    looked = _ArchiveRun._extents

    def extents(*given: Any, **more: Any) -> Any:
        found = looked(*given, **more)
        written.numbers(3)
        return found

    monkeypatch.setattr(_ArchiveRun, "_extents", extents)
    [row] = run().topics
    assert (row.to_seq, row.lag) == (written.head - 3, 3)
    last = [item.value for item in client.read("sys:pipelines") if isinstance(item, Record)][-1]
    assert last["topics"][0]["lag"] == 3


@pytest.mark.torture
def test_times_are_those_of_the_topic(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(20)
    run()
    seen = {record.seq: record.ts for record in client.read(topic)}  # type: ignore[union-attr]
    rows = [row for batch in lake.read(topic, written.epoch) for row in batch.to_pylist()]
    assert {row["seq"]: round(row["ts"].timestamp() * 1000) for row in rows} == seen


def test_deleted_records_are_neither_archived_nor_a_gap(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(100)
    removed = {seq for seq, record in written.records.items() if record[1] == "user-3"} | set(range(1, 11))
    client.delete(topic, match="user-3")
    client.delete(topic, before_seq=11)
    run()
    assert check_exact(lake, written, deleted=removed) == 100 - len(removed)
    assert archived_epoch_of(lake, written).gaps == ()


def test_evicted_range_is_in_the_ledger_exactly(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic, cap_records=40)
    written.numbers(1000)
    tombstone = next(iter(client.read(topic)))
    report = run()
    [gap] = archived_epoch_of(lake, written).gaps
    assert (gap.first, gap.last, gap.reason) == (1, tombstone.gap_to, "cap")  # type: ignore[union-attr]
    check_exact(lake, written)
    assert [(gap.from_seq, gap.to_seq, gap.reason) for gap in report.topics[0].gaps] == [(1, gap.last, "cap")]
    written.numbers(1000)
    run()
    check_exact(lake, written)
    assert [gap.first for gap in archived_epoch_of(lake, written).gaps] == [1, 1001]
    rows = [(row["from_seq"], row["to_seq"]) for row in lake.ledger([topic]).to_pylist()]
    assert rows == [(gap.first, gap.last) for gap in archived_epoch_of(lake, written).gaps]


def test_expired_range_has_its_own_reason(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic, ttl_ms=1)
    written.numbers(50)
    wait_for(lambda: client.topic(topic).earliest_seq == 51, "the records to expire")
    run()
    [gap] = archived_epoch_of(lake, written).gaps
    assert (gap.first, gap.last, gap.reason) == (1, 50, "ttl")
    check_exact(lake, written)
    assert lake.table(topic).files() == []


def test_records_evicted_during_archiving_are_archived_or_a_gap(
    run: Any, client: Client, server: ServerProcess, lake: Lake, topic: str
):
    stop = threading.Event()
    written = Written(client, topic, cap_records=300)

    def write() -> None:
        with Client(server.url) as writer:
            written.client = writer
            while not stop.is_set():
                written.numbers(50)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        wait_for(lambda: client.topic(topic).earliest_seq > 1, "an eviction")
        for _ in range(4):
            run(round_bytes=10_000)
    finally:
        stop.set()
        writer.join()
    written.client = client
    run()
    rows = check_exact(lake, written)
    assert 0 < rows < len(written.records)


def test_recreated_topic_has_two_epochs_in_the_lake(run: Any, client: Client, lake: Lake, topic: str):
    first = Written(client, topic)
    first.numbers(30)
    run()
    client.drop_topic(topic)
    again = Written(client, topic)
    again.numbers(20)
    run()
    assert check_exact(lake, first, head=30) == 30
    assert check_exact(lake, again) == 20
    assert [archived_epoch.epoch for archived_epoch in lake.snapshot().epochs(topic)] == [first.epoch, again.epoch]
    client.drop_topic(topic)
    assert run().records == 0  # deleted, which is not an error: the lake has it


@pytest.mark.torture
def test_all_kinds_of_names_are_archived_and_read_by_spark(
    run: Any, client: Client, lake: Lake, topic: str, spark: SparkSession
):
    names = [f"{topic}:a:b", f"{topic}.x_y-z", "007", "20240229"]
    written = [Written(client, name) for name in names]
    for number, one in enumerate(written, 1):
        one.numbers(number)
    assert run(topics=names).records == 10
    for number, one in enumerate(written, 1):
        assert check_exact(lake, one) == number
    rows = spark.read.format("topics").options(lake=lake.path, lakeOnly=True, subscribe=",".join(names)).load()
    counts = {row["topic"]: row["count"] for row in rows.groupBy("topic").count().collect()}
    assert counts == {name: at for at, name in enumerate(names, 1)}


def test_prefix_and_pattern_select_topics(run: Any, client: Client, lake: Lake, topic: str):
    for name in ("a:1", "a:2", "b:1"):
        Written(client, f"{topic}-{name}").numbers(2)
    run(prefix=f"{topic}-a")
    assert lake.snapshot().topics() == [f"{topic}-a:1", f"{topic}-a:2"]
    run(pattern=f"{topic}-.:1")
    assert lake.snapshot().topics() == [f"{topic}-a:1", f"{topic}-a:2", f"{topic}-b:1"]


def test_system_topics_are_archived_only_on_request(run: Any, client: Client, lake: Lake, topic: str):
    Written(client, topic).numbers(1)
    run()
    assert client.topic("sys:pipelines").head_seq > 0
    run(prefix="", new_lake=True)  # other tests have archived theirs elsewhere
    assert "sys:pipelines" not in lake.snapshot().topics()
    run(prefix="sys:")
    assert "sys:pipelines" in lake.snapshot().topics()


def test_small_files_are_merged(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    for _ in range(6):
        written.numbers(20)
        run(merge_files=3)
    assert len(archived_epoch_of(lake, written).files) < 4
    assert check_exact(lake, written) == 120


def test_dry_run_reports_and_changes_nothing(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(20)
    report = run(dry_run=True)
    [row] = report.topics
    assert (row.from_seq, row.to_seq, row.records) == (1, 20, 20)
    assert not Path(lake.path).exists()
    run()
    assert run(dry_run=True).records == 0


def test_last_archived_seq_is_reported_to_the_server(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(20)
    run()
    assert client.topic(topic).archived_seq == 20


def test_trim_deletes_only_archived_records(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(100)
    report = run(trim=True)
    state = client.topic(topic)
    assert (state.count, state.earliest_seq, state.head_seq) == (0, 101, 100)
    assert report.topics[0].figures == {"trimmed": 100}
    assert archived_epoch_of(lake, written).trimmed_to == 100
    written.numbers(10)
    assert client.topic(topic).count == 10
    run(trim=True)
    assert check_exact(lake, written) == 110
    assert archived_epoch_of(lake, written).gaps == ()


def test_trim_catches_up_with_earlier_archives(run: Any, client: Client, lake: Lake, topic: str):
    Written(client, topic).numbers(30)
    run()
    assert client.topic(topic).count == 30
    run(trim=True)
    assert client.topic(topic).count == 0


def test_trim_keeps_everything_if_a_file_cannot_be_read_back(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    written.numbers(30)
    run()
    [file] = archived_epoch_of(lake, written).files
    path = Path(lake.path) / file.path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Failed, match=r"bytes, but .* were written"):
        run(trim=True)
    assert client.topic(topic).count == 30
    assert archived_epoch_of(lake, written).trimmed_to == 0


def test_records_written_during_a_trim_stay(run: Any, client: Client, lake: Lake, topic: str, monkeypatch: Any):
    """A trim deletes the committed records, not those written meanwhile."""
    written = Written(client, topic)
    written.numbers(30)
    verify = Lake.verify

    def verify_and_write(self: Lake, file: Any) -> None:
        verify(self, file)
        written.numbers(5)

    monkeypatch.setattr(Lake, "verify", verify_and_write)
    run(trim=True)
    state = client.topic(topic)
    assert (state.earliest_seq, state.count) == (31, len(written.records) - 30)


def test_topic_recreated_during_a_trim_loses_nothing(
    run: Any, client: Client, lake: Lake, topic: str, monkeypatch: Any
):
    first = Written(client, topic)
    first.numbers(30)
    verify = Lake.verify
    again: list[Written] = []

    def verify_and_recreate(self: Lake, file: Any) -> None:
        verify(self, file)
        client.drop_topic(topic)
        again.append(Written(client, topic))
        again[0].numbers(10)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "verify", verify_and_recreate)
        run(trim=True)
    assert client.topic(topic).count == 10
    run()
    assert check_exact(lake, first, head=30) == 30
    assert check_exact(lake, again[0]) == 10


def test_queue_is_archived_but_not_trimmed(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic, type="queue")
    written.numbers(10)
    report = run(trim=True)
    assert client.topic(topic).count == 10
    assert "is a queue" in " ".join(report.warnings)
    assert check_exact(lake, written) == 10


def test_concurrent_archivers_of_a_topic_do_not_interfere(
    run: Any, client: Client, server: ServerProcess, lake: Lake, topic: str
):
    written = Written(client, topic)
    written.numbers(3000)
    reports: list[RunReport] = []
    threads = [
        threading.Thread(target=lambda: reports.append(run(round_bytes=20_000, merge_files=3))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.state for report in reports] == ["done"] * 3
    assert sum(report.records for report in reports) == 3000
    assert check_exact(lake, written) == 3000


def test_follow_runs_until_it_is_stopped(run: Any, client: Client, lake: Lake, topic: str):
    written = Written(client, topic)
    stop = threading.Event()
    reports: list[RunReport] = []
    following = threading.Thread(target=lambda: reports.append(run(follow=True, every_s=0, stop=stop)))
    following.start()
    try:
        for count in (10, 20):
            written.numbers(10)
            wait_for(lambda: archived_to(lake, written) == count, f"{count} records in the lake")  # noqa: B023
    finally:
        stop.set()
        following.join()
    assert reports[0].state == "stopped"
    assert check_exact(lake, written) == 20


def archived_to(lake: Lake, written: Written) -> int:
    if not lake.exists():
        return 0
    archived_epoch = lake.snapshot().archived(written.topic, written.epoch)
    return 0 if archived_epoch is None else archived_epoch.archived_to


def test_progress_counts_topics_once(run: Any, client: Client, lake: Lake, topic: str):
    """A topic that has lost its beginning is archived in two parts."""
    Written(client, topic).numbers(3)
    client.put_topic(f"{topic}.b", cap_records=2)
    Written(client, f"{topic}.b").numbers(3)
    out = io.StringIO()
    run(prefix=topic, progress=Progress(out))
    assert "topics: archiving 6 seqs of 2 topics\n" in out.getvalue()


def test_follow_waits_for_the_first_topic_with_a_warning(run: Any, client: Client, lake: Lake, topic: str):
    stop, out = threading.Event(), io.StringIO()

    def write() -> None:
        wait_for(lambda: "waiting for one" in out.getvalue(), "the warning")
        Written(client, f"{topic}.a").numbers(3)
        wait_for(lambda: lake.exists() and lake.snapshot().topics(), "the archive")
        stop.set()

    writing = threading.Thread(target=write)
    writing.start()
    report = run(prefix=f"{topic}.", follow=True, stop=stop, progress=Progress(out))
    writing.join()
    assert (report.state, report.records, report.looked_at) == ("stopped", 3, 1)
    assert f"no topic on {client.url} begins with '{topic}.': waiting for one" in report.warnings


def test_missing_topic_is_an_error_with_its_name(run: Any, lake: Lake, topic: str):
    with pytest.raises(Failed, match=f"topic {topic} does not exist"):
        run()


def test_selection_of_topics_is_required(run: Any):
    with pytest.raises(BadUsage, match="use --topic, --prefix or --pattern"):
        run(topics=[])
    with pytest.raises(BadUsage, match="not a regular expression"):
        run(pattern="(")


def test_failed_read_leaves_the_lake_unchanged(run: Any, client: Client, lake: Lake, topic: str, monkeypatch: Any):
    written = Written(client, topic)
    written.numbers(10)
    run()
    before = lake.table(topic).state()
    written.numbers(10)
    with monkeypatch.context() as patch:
        patch.setattr("topics.spark.pipelines.archive.state.archive_spans", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run()
    assert lake.table(topic).state() == before
    assert listed(lake, topic, written.epoch) == list(range(1, 11))
    run()
    assert check_exact(lake, written) == 20


def test_typed_columns_are_filled_by_later_runs_too(
    here: Any, server: ServerProcess, client: Client, lake: Lake, topic: str
):
    written = Written(client, topic)
    written.numbers(30)
    archive(url=server.url, lake=lake.path, topics=[topic], spark=here, columns="n INT")
    written.numbers(30)
    archive(url=server.url, lake=lake.path, topics=[topic], spark=here)
    table = lake.table(topic).delta()
    assert table is not None
    rows = table.to_pyarrow_table(columns=["seq", "n"]).sort_by("seq").to_pylist()
    assert [row["n"] for row in rows] == [n if n % 3 else None for n in range(60)]
    with pytest.raises(BadUsage, match=r"column n of topic .* is INT in the lake, not STRING"):
        archive(url=server.url, lake=lake.path, topics=[topic], spark=here, columns="n STRING")
    with pytest.raises(BadUsage, match="--columns: TEXT is not a type"):
        archive(url=server.url, lake=lake.path, topics=[topic], spark=here, columns="n TEXT")


def test_files_of_a_killed_run_are_removed_by_the_next(
    here: Any, server: ServerProcess, client: Client, lake: Lake, topic: str
):
    from tests.lake.making import records
    from topics.lake import write_files

    written = Written(client, topic)
    written.numbers(10)
    lake.create()
    [dead] = write_files(lake.storage, topic, written.epoch, [records(1, 10)])
    archive(url=server.url, lake=lake.path, topics=[topic], spark=here)
    assert lake.storage.size(dead.path) is None
    assert check_exact(lake, written) == 10
