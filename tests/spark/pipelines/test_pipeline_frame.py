"""The common code of pipelines: commands, reports, progress, failures and the report in `sys:pipelines`."""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess, StartServer
from tests.spark.processes import wait_for
from topics.cli import pipeline
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record
from topics.errors import Code, TopicsError
from topics.lake import Lake
from topics.spark.failures import BadUsage, Failed, explain, next_step
from topics.spark.pipelines.archive import archive
from topics.spark.pipelines.rounds import Rounds, RoundsPosition, SourceTopic
from topics.spark.pipelines.run import job as job_module
from topics.spark.pipelines.run.job import PipelineJob
from topics.spark.pipelines.run.report import Progress, ReportedGap, RunReport, progress_for
from topics.spark.topic_names import missing_in


def runs(client: Client) -> list[Any]:
    return [item.value for item in client.read("sys:pipelines") if isinstance(item, Record)]


def test_command_prints_its_report_and_records_it(
    spark: SparkSession,
    server: ServerProcess,
    client: Client,
    topic: str,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
):
    client.append(topic, [{"data": 1, "tag": "a"}, {"data": 2, "tag": "a"}])
    command = ["pipeline", "compact", "--url", server.url, "--topic", topic, "--table", str(tmp_path / "out")]

    assert main([*command, "--json"]) == 0

    shown = capsys.readouterr()
    report = json.loads(shown.out)
    assert (report["pipeline"], report["state"], report["topics"][0]["records"]) == ("compact", "done", 1)
    steps = [line for line in shown.err.splitlines() if not line.endswith(" s so far")]  # printed on a slow machine
    reading = f"topics: {topic}: seqs 1 to 2"  # shown again: it is what takes the time
    assert steps == [reading, "topics: on Spark, which runs already: compact needs Spark SQL", reading]
    assert runs(client)[-1] == report

    monkeypatch.setattr(Rounds, "finish", lambda self: client.append(topic, [{"data": 3}]))
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "compact: nothing new in 1 topic, " in shown
    assert f"  {topic} → {tmp_path}/out: nothing new, lag 1, " in shown.replace("lag 1\n", "lag 1, ")


def test_dry_run_records_nothing(
    spark: Any, server: ServerProcess, client: Client, topic: str, tmp_path: Path, capsys: Any
):
    client.append(topic, [{"data": 1, "tag": "a"}])
    before = len(runs(client)) if [*client.topics("sys:pipelines")] else 0
    command = ["pipeline", "compact", "--url", server.url, "--topic", topic, "--table", str(tmp_path / "out")]

    assert main([*command, "--dry-run"]) == 0

    assert "would write" in capsys.readouterr().out
    assert (len(runs(client)) if [*client.topics("sys:pipelines")] else 0) == before


def test_failure_names_the_next_step_and_is_recorded(
    server: ServerProcess, client: Client, topic: str, capsys: Any, tmp_path: Path
):
    where = ["--url", server.url, "--topic", topic, "--table", str(tmp_path / "out")]
    assert main(["pipeline", "compact", *where]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"topics: topic {topic} does not exist" in shown.err
    assert "\nnext: " in shown.err
    last = runs(client)[-1]
    assert (last["state"], last["pipeline"]) == ("failed", "compact")
    assert topic in last["error"]["message"]


def test_unreachable_server_is_noticed_at_once(tmp_path: Path, capsys: Any):
    where = ["--url", "http://127.0.0.1:9", "--topic", "t", "--table", str(tmp_path / "out")]
    assert main(["pipeline", "compact", *where]) == 1
    shown = capsys.readouterr().err
    assert "no answer from http://127.0.0.1:9" in shown
    assert "check that the server runs" in shown


def test_key_that_may_not_write_the_report_causes_a_warning(
    spark: SparkSession, start_server: StartServer, tmp_path: Path, capsys: Any
):
    server = start_server(api_keys="all,few:read+write:mine.")
    with Client(server.url, token="all") as client:
        client.append("mine.t", [{"data": 1, "tag": "a"}])
    (tmp_path / "key").write_text("few\n")
    where = ["--url", server.url, "--topic", "mine.t", "--table", str(tmp_path / "out")]

    assert main(["pipeline", "compact", *where, "--token-file", str(tmp_path / "key"), "--json"]) == 0

    [warning] = json.loads(capsys.readouterr().out)["warnings"]
    assert "sys:pipelines" in warning
    assert main(["pipeline", "compact", *where, "--token", "none"]) == 1
    assert "--token-file" in capsys.readouterr().err


def test_report_with_findings_has_exit_status_one():
    class Args:
        json = False

    fine = RunReport(pipeline="audit", run_id="1")
    assert pipeline.run("audit", lambda args: fine, Args(), pipeline.describe) == 0  # type: ignore[arg-type]
    found = RunReport(pipeline="audit", run_id="1", ok=False)
    assert pipeline.run("audit", lambda args: found, Args(), pipeline.describe) == 1  # type: ignore[arg-type]


def test_first_signal_stops_cleanly_and_second_at_once():
    with pipeline._stoppable(follows=True) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.is_set()
        stop.last_s -= pipeline.ECHO_S  # later than an echo of the first
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    with pipeline._stoppable(follows=False), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_text_report_lists_topics_gaps_and_warnings():
    report = RunReport(pipeline="mirror", run_id="1", started_ms=0, ended_ms=1500, figures={"lag": 3})
    row = report.topic("orders", into="elsewhere")
    row.from_seq, row.to_seq, row.records, row.lag = 1, 9, 8, 3
    row.gaps.append(ReportedGap(from_seq=2, to_seq=2, reason="cap"))
    report.warnings.append("careful")
    assert pipeline.describe(report).splitlines() == [
        "  orders → elsewhere: seqs 1 to 9, 8 records, lag 3",
        "  lost: orders seqs 2 to 2 (cap)",
        "  warning: careful",
        "mirror: wrote 8 records of 1 topic, lag 3, 1.5 s",
    ]


def test_text_report_distinguishes_nothing_new_nothing_written_and_dry_run():
    report = RunReport(pipeline="compact", run_id="1", looked_at=3)
    row = report.topic("orders")
    assert pipeline.describe(report).splitlines() == [
        "  orders: nothing new",
        "compact: nothing new in 3 topics, 0.0 s",
    ]
    row.from_seq, row.to_seq = 4, 9
    assert pipeline.describe(report).splitlines() == [
        "  orders: seqs 4 to 9, 0 records",
        "compact: wrote 0 records of 1 topic (3 looked at), 0.0 s",
    ]
    report.dry_run, row.records, row.at_most, row.would = True, 6, True, ["delete seqs 1 to 3"]
    assert pipeline.describe(report).splitlines() == [
        "  orders: seqs 4 to 9, at most 6 records to write",
        "    would delete seqs 1 to 3",
        "compact: would write at most 6 records of 1 topic (3 looked at), 0.0 s: a dry run, nothing was changed",
    ]


def test_progress_is_one_line_per_step_without_a_terminal():
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert not progress_for(out=io.StringIO()).is_bar
    assert not progress_for(out=Terminal(), quiet=True).is_bar
    screen = Terminal()
    bar = progress_for(out=screen)
    assert bar.is_bar
    bar.BAR_EVERY_S = 0.0  # type: ignore[misc]
    bar.step("copying")
    bar.show(50, 100)
    bar.warn("careful")
    bar.close()
    assert "[############............]  50%  50 of 100 records" in screen.getvalue()
    assert screen.getvalue().endswith("topics: warning: careful\n")


def test_innermost_error_of_a_task_is_reported():
    class FromSpark(Exception):
        pass

    FromSpark.__module__ = "pyspark.errors"
    text = (
        "Job aborted due to stage failure:\n org.apache.spark.api.python.PythonException: Traceback (most recent call "
        'last):\n  File "x.py", line 3, in copy\n    raise\ntopics.spark.read.Incomplete: reading topic t ended\n\n'
        "\tat org.apache.spark.Handler.handle(PythonRunner.scala:1)\n"
    )
    assert explain(FromSpark(text)) == "reading topic t ended"
    assert explain(FromSpark("[PARSE_SYNTAX_ERROR] near 'x'\nmore")) == "[PARSE_SYNTAX_ERROR] near 'x'"


def test_next_step_depends_on_the_failure():
    assert "run the same command again" in next_step(KeyboardInterrupt())
    assert "--token-file" in next_step(TopicsError(Code.FORBIDDEN, "no"))
    assert next_step(Failed("x", next="y")) == "y"
    assert next_step(RuntimeError()).endswith("it continues where this run stopped")
    assert next_step(RuntimeError(), resumes=False) == "run the same command again"


@pytest.mark.parametrize(
    ("name", "dry_run", "step"),
    [
        ("archive", False, "run the same command again: it continues where this run stopped"),
        ("archive", True, "run the same command again"),
        ("audit", False, "run the same command again"),
    ],
)
def test_only_a_run_with_saved_progress_promises_to_continue(name: str, dry_run: bool, step: str):
    with pytest.raises(RuntimeError), PipelineJob(name, dry_run=dry_run) as job:
        raise RuntimeError
    assert job.report.next == step


def test_duration_is_measured_from_the_command(capsys: Any):
    def execute(args: argparse.Namespace) -> RunReport:
        time.sleep(0.2)  # modules are loaded
        with PipelineJob("x", **pipeline.shared(args)) as job:
            pass
        return job.report

    args = argparse.Namespace(json=False, token=None, token_file=None, dry_run=True, master=None, storage_option=[])
    assert pipeline.run("x", execute, args, lambda report: str(report.ended_ms - report.started_ms)) == 0
    assert int(capsys.readouterr().out) >= 200


def test_system_topics_are_not_suggested():
    assert missing_in("/lake", "oders", ["sys:x", "orders"]).next == "check the name; there is orders"
    assert missing_in("/lake", "oders", ["sys:x"]).next == "check the name; there is sys:x"


def test_job_that_follows_waits_for_its_topic(server: ServerProcess, client: Client, topic: str):
    stop, heads = threading.Event(), list[int]()

    class Looking(Rounds[RoundsPosition]):
        def step(self, head: int) -> bool:
            heads.append(head)
            stop.set()
            return False

    with PipelineJob("x", servers=[server.url], stop=stop) as job, job.client(server.url) as asking:

        def looking(name: str) -> Looking:
            return Looking(
                SourceTopic(job, asking, name), None, RoundsPosition(declaration=1, epoch=0), into=f"{topic}.out",
                table=None, positions="sys:positions", prefix=f"x:{name}:", step_seqs=10, full=False,
            )  # fmt: skip

        with pytest.raises(BadUsage, match=f"topic {topic} does not exist on {server.url}"):
            looking(topic).run(follow=False, every_s=0)
        with after_warnings(job, 1, stop.set):
            looking(f"{topic}.never").run(follow=True, every_s=0)
        stop.clear()
        with after_warnings(job, 2, lambda: client.append(topic, [{"data": 1}])):
            looking(topic).run(follow=True, every_s=0)
        assert job.report.warnings[1:] == [f"topic {topic} does not exist on {server.url} yet: waiting for it"]
        assert heads == [1]


@contextmanager
def after_warnings(job: PipelineJob, count: int, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` in a thread once the job has given so many warnings."""

    def wait_and_act() -> None:
        wait_for(lambda: len(job.report.warnings) >= count, "the warning", every_s=0.01)
        act()

    acting = threading.Thread(target=wait_and_act)
    acting.start()
    yield
    acting.join()


def test_two_keys_at_once_are_refused(tmp_path: Path):
    with pytest.raises(BadUsage):
        PipelineJob("x", token="a", token_file="b")


def test_given_session_is_not_stopped(spark: SparkSession):
    with PipelineJob("x", spark=spark) as job:
        assert job.spark is spark
    assert spark.range(1).count() == 1


def test_job_that_follows_starts_spark_once(
    spark: SparkSession, client: Client, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[str] = []

    class Own:
        """The session of the tests, as the one that a job starts and ends."""

        def __getattr__(self, name: str) -> Any:
            return calls.append("stop") or (lambda: None) if name == "stop" else getattr(spark, name)

    def start(name: str, **options: object) -> Own:
        calls.append(f"start {name}")
        return Own()

    monkeypatch.setattr("topics.spark.spark_session.session", start)
    monkeypatch.setattr(job_module, "_active_session", lambda: None)
    monkeypatch.setattr("topics.spark.warm.usable", lambda: None)
    stop, lake = threading.Event(), Lake(str(tmp_path / "lake"))

    def archived(seq: int) -> bool:
        epochs = lake.snapshot().epochs(topic) if lake.exists() else []
        return bool(epochs) and epochs[-1].archived_to == seq

    def write() -> None:
        try:
            for seq in range(2, 5):
                wait_for(lambda: archived(seq - 1), "the archive")  # noqa: B023
                client.append(topic, [{"data": seq}])
            wait_for(lambda: archived(4), "the last round")
        finally:
            stop.set()

    client.append(topic, [{"data": 1}])
    writing = threading.Thread(target=write)
    writing.start()
    report = archive(url=client.url, topics=[topic], lake=lake.path, follow=True, every_s=0, stop=stop)
    writing.join()
    assert archived(4)
    assert report.execution is not None
    assert report.execution.engine == "spark"
    assert calls == ["start topics archive", "stop"]


def test_long_round_publishes_its_lag(
    server: ServerProcess, client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(job_module, "REPORT_EVERY_S", 0.1)
    monkeypatch.setattr(job_module, "BEAT_S", 0.05)
    client.append(topic, [{"data": 1}])
    screen, stop = io.StringIO(), threading.Event()
    lines = Progress(screen)
    lines.LINE_EVERY_S = 0.1  # type: ignore[misc]

    with PipelineJob("archive", servers=[server.url], stop=stop, progress=lines) as job:
        row = job.report.topic(topic)
        job.reached[server.url, topic] = (client.topic(topic).epoch, 1)

        def work() -> bool:
            job.step("archiving")
            job.progress.show(1200, 3000, unit="seqs")
            client.append(topic, [{"data": 2}, {"data": 3}])
            reported.extend(wait_for(lambda: _running(client, job), "a report with a lag"))
            wait_for(lambda: "so far" in screen.getvalue(), "a line of progress")
            stop.set()
            return True

        reported: list[Any] = []
        job.repeat(work, follow=True)
        client.append(topic, [{"data": 4}])

    assert reported[-1]["topics"][0]["lag"] == 2
    assert re.search(r"topics: archiving: 1,200 of 3,000 seqs, \d+ s so far", screen.getvalue())
    assert row.lag == 3
    assert runs(client)[-1]["topics"][0]["lag"] == 3


def _running(client: Client, job: PipelineJob) -> list[Any]:
    """Return the reports of a running job whose topic has a lag."""
    if not [*client.topics("sys:pipelines")]:
        return []
    reports = [one for one in runs(client) if (one["run_id"], one["state"]) == (job.report.run_id, "running")]
    return [one for one in reports if one["topics"][0]["lag"]]


def test_unknown_lag_is_not_zero(start_server: StartServer):
    server = start_server()
    with PipelineJob("archive", servers=[server.url]) as job:
        row = job.report.topic("t")
        row.lag = 0
        job.reached[server.url, "t"] = (1, 0)
        server.stop()
    assert row.lag is None
