"""One run of a pipeline: its tasks or Spark session, report, progress and failures, and its report in `sys:pipelines`.

    def compact(*, url: str, topic: str, **options: Unpack[JobOptions]) -> RunReport:
        with PipelineJob("compact", servers=[url], **options) as job:
            job.step(f"reading {topic}")
            frame = job.spark.read.format("topics").options(**job.reading(url)).option("subscribe", topic).load()
            job.report.topic(topic).records = frame.count()
        return job.report

A job keeps no state between runs: after a kill at any line, the same call runs it again.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypedDict, Unpack

import msgspec

from topics.client import Client
from topics.clock import SystemClock
from topics.errors import Code, TopicsError
from topics.installation import install_command, is_installed
from topics.lake.storage import SETTINGS, given_options, set_options
from topics.spark import warm
from topics.spark.failures import BadUsage, Failed, NoSpark, as_failed, explain, kind_of, next_step
from topics.spark.jvm import SESSION, NoJava, find_java, quiet_start
from topics.spark.options import PATIENT_RETRIES, BadOption, ConnectionOptions
from topics.spark.pipelines.run.report import Progress, RunProblem, RunReport, TopicReport
from topics.spark.pipelines.run.tasks import Item, Result, Tasks, choose
from topics.spark.source.catalog import states_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = "sys:pipelines"
RUNS_CONFIG = {"cap_records": 10_000}
REPORT_EVERY_S = 10.0  # how often a job that follows publishes its report
IDLE_S = 0.5  # pause of a job that follows and finds nothing new
BEAT_S = 1.0  # how often the progress line shows that a step still runs
FIRST_RETRIES = 2
BRIEF: Final[dict[str, Any]] = {"retries": 2, "timeout_s": 10.0}  # of a client for reports
STATELESS = ("audit",)  # pipelines that keep no position for the next run

_EXECUTOR_SETTINGS = f"spark.executorEnv.{SETTINGS}"


class JobOptions(TypedDict, total=False):
    """Options that every pipeline accepts beside its own arguments."""

    token: str | None
    token_file: str | None
    storage_options: Mapping[str, str]  # settings of the object store of a lake or table, beside the environment
    dry_run: bool
    master: str | None
    spark: SparkSession | bool | None  # a session to use; True: Spark; False: this process; None: Spark if installed
    progress: Progress | None
    stop: threading.Event | None  # the caller sets it to end a job that follows
    started_ms: int | None  # when the command started, if that was before the job


class ReadingOptions(JobOptions, total=False):
    """Options of the pipelines that use a server."""

    max_bytes_per_second: int | None  # that all tasks together read from the server; of a replay, that it writes


class PipelineJob:
    """One run of a pipeline."""

    def __init__(
        self,
        pipeline: str,
        *,
        servers: Sequence[str] = (),
        token_files: Mapping[str, str | None] | None = None,
        **options: Unpack[ReadingOptions],
    ) -> None:
        not_given = {name for name in ReadingOptions.__optional_keys__ if options.get(name) is None}
        if unknown := options.keys() - (ReadingOptions if servers else JobOptions).__optional_keys__ - not_given:
            raise BadUsage(f"{pipeline} has no option {min(unknown)}")
        token, token_file = options.get("token"), options.get("token_file")
        master, spark = options.get("master"), options.get("spark")
        if token is not None and token_file is not None:
            raise BadUsage("token and token_file: give one of them")
        if spark is False and master is not None:
            raise BadUsage("--no-spark and --master: give one of them")
        self.max_bytes_per_second = options.get("max_bytes_per_second")
        if self.max_bytes_per_second is not None and self.max_bytes_per_second < 1:
            raise BadUsage("--max-bytes-per-second: 1 or more")
        set_options(options.get("storage_options") or {})
        began_ms = options.get("started_ms") or SystemClock().now_ms()
        self.dry_run = bool(options.get("dry_run"))
        self.report = RunReport(
            pipeline=pipeline, run_id=secrets.token_hex(8), started_ms=began_ms, dry_run=self.dry_run
        )
        self.progress = options.get("progress") or Progress()
        self.stopping = options.get("stop") or threading.Event()
        self._servers = tuple(dict.fromkeys(url.rstrip("/") for url in servers))
        self._token, self._token_file = token, None if token_file is None else os.path.abspath(token_file)
        self._token_files = {
            url.rstrip("/"): os.path.abspath(file) for url, file in (token_files or {}).items() if file is not None
        }
        self._master = master
        self._wants_spark = spark if isinstance(spark, bool) else None
        self._spark: SparkSession | None = None if isinstance(spark, bool) else spark
        self._owns_spark = False
        self._shared: SparkSession | None = None  # a session of the Spark that stays in memory
        self._published_s = time.monotonic()
        self._published = 0
        self._follows = self._began = False
        self._step = ""
        self._working_since: float | None = None
        self.reached: dict[tuple[str, str], tuple[int, int]] = {}  # by server and topic: epoch and last seq done
        self.sums_lags = False  # whether the report has the sum of the lags as a figure
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="topics-pipeline", daemon=True)

    # --- the run

    def __enter__(self) -> Self:
        try:
            for url in self._servers:  # a wrong address or key fails at once, without the retries of a running job
                try:
                    with self.client(url, retries=FIRST_RETRIES) as client:
                        next(client.topics(RUNS), None)
                except ValueError as error:
                    raise BadUsage(str(error)) from None
                except TopicsError as error:
                    if error.code is not Code.FORBIDDEN:  # a key without `read` may still suit the pipeline
                        raise
        except BaseException as error:
            self._fail(error)
            raise
        self._began = True
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._heart.join()
        failure = None if error is None else as_failed(error)
        if failure is None:
            self.report.ended_ms = SystemClock().now_ms()
            self.report.state = "stopped" if self.stopping.is_set() else "done"
        else:
            self._fail(failure)
        self.publish()
        self.progress.close()
        if self._shared is not None and error is not None:
            with suppress(Exception):
                self._shared.interruptAll()  # what this run began must not go on beside the next one
        if self._owns_spark and self._spark is not None:
            with suppress(Exception):  # a signal to the process group may have ended the JVM already
                self._spark.stop()
        if failure is not error and failure is not None:
            raise failure from error

    def _fail(self, error: BaseException) -> None:
        """Record the failure in the report and attach the report to the exception."""
        self.report.ended_ms = SystemClock().now_ms()
        resumes = self._began and not self.dry_run and self.report.pipeline not in STATELESS
        self.report.fail(_problem(error, resumes=resumes, began=self._began))
        error.__dict__["report"] = self.report

    def step(self, text: str) -> None:
        self._step = text
        self.progress.step(text)
        self._working_since = time.monotonic()

    def work(self) -> None:
        """Mark the current step as running again after a pause."""
        if self._working_since is None:
            self._working_since = time.monotonic()

    def warn(self, text: str) -> None:
        """Show a warning now and keep it in the report."""
        if text not in self.report.warnings:
            self.progress.warn(text)
            self.report.warnings.append(text)

    def repeat(self, work: Callable[[], bool], *, follow: bool, every_s: float = 0.0) -> None:
        """Call `work` once; with `follow`, until the job is stopped, with a pause after a call that did something."""
        self._follows = follow
        while True:
            pause_s = every_s if work() else IDLE_S
            self._working_since = None  # the job waits
            if not follow or self.stopping.wait(pause_s):
                return

    def _beat(self) -> None:
        """Update the progress line and publish the report while the main thread waits for Spark."""
        while not self._over.wait(BEAT_S):
            since = self._working_since
            if since is not None:
                self.progress.beat(time.monotonic() - since)
            if self._follows and time.monotonic() - self._published_s > REPORT_EVERY_S:
                self.publish()

    # --- Spark and servers

    def tasks(self, *, spark_only: str | None = None) -> Tasks:
        """Return what runs the tasks: Spark, or this process; see `choose`. Show a new choice."""
        if spark_only is not None and self._wants_spark is False:
            raise BadUsage(f"--no-spark: {spark_only}")
        why = None if self._master is None else f"at {self._master}"
        if self._spark is not None or "PYSPARK_GATEWAY_PORT" in os.environ or _active_session() is not None:
            why = "which runs already"
        elif self._warm() is not None:
            why = "started by `topics spark start`"
        found = choose(asked=self._wants_spark, spark_only=spark_only, why=why)
        is_new = self.report.execution is None or self.report.execution.engine != found.engine
        if is_new:
            self.report.execution = found
            self.progress.step(found.reason)
        if found.engine == "spark" and self._spark is None:
            self._check_installed(spark_only, avoidable=spark_only is None and self._wants_spark is None)
        spark = self.spark if found.engine == "spark" else None
        tasks = Tasks(spark, max_bytes_per_second=self.max_bytes_per_second)
        if is_new and self._step and not self._owns_spark:  # a start of Spark has shown its own steps
            self.progress.step(self._step)
        return tasks

    def run(
        self,
        items: Sequence[Item],
        task: Callable[[Item], Result],
        *,
        result: type[Result],
        weight: Callable[[Item], int],
    ) -> list[Result]:
        """Run tasks; see `Tasks.run`. Spark is not started if there are none."""
        return self.tasks().run(items, task, result=result, weight=weight) if items else []

    def _check_installed(self, spark_only: str | None, *, avoidable: bool) -> None:
        """Raise `NoSpark` if PySpark or Java is missing. `avoidable`: the job can run in this process instead."""
        instead = "; or use --no-spark" if avoidable else ""
        why = f" ({spark_only})" if spark_only else ""
        if not is_installed("pyspark"):
            raise NoSpark(f"Spark is not installed{why}", next=f"{install_command('spark')}{instead}")
        try:
            find_java()
        except NoJava as error:
            raise NoSpark(f"{error}{why}", next=f"install Java{instead}") from None

    @property
    def spark(self) -> SparkSession:
        """The session. Started at the first use, so that a dry run on the driver alone needs no Java."""
        if self._spark is None:
            if self._wants_spark is False:
                raise BadUsage(f"{self.report.pipeline} needs Spark: remove spark=False")
            from topics.spark.spark_session import register, session

            running = _active_session()
            if running is None and (state := self._warm()) is not None:
                running = self._shared = warm.connect(state, f"topics {self.report.pipeline}")
            if running is not None:
                self._spark = register(running)
            else:
                interrupted = self._step
                self.step(warm.STARTING)
                with quiet_start():
                    name = f"topics {self.report.pipeline}"
                    config = SESSION | ({_EXECUTOR_SETTINGS: os.environ[SETTINGS]} if given_options() else {})
                    # spark-submit sets the master; else all cores of this machine are used.
                    otherwise = None if "PYSPARK_GATEWAY_PORT" in os.environ else "local[*]"
                    self._spark = session(name, master=self._master or otherwise, config=config)
                self._owns_spark = True
                if interrupted:
                    self.step(interrupted)
        return self._spark

    def _warm(self) -> warm.State | None:
        """Return the Spark that `topics spark start` started, if this job may use it."""
        if self._master is not None or self._wants_spark is False or "PYSPARK_GATEWAY_PORT" in os.environ:
            return None
        return warm.usable()

    def client(self, url: str, **options: Any) -> Client:
        """Return a client for `url`. The caller closes it."""
        return Client(url, token=self.connection(url).read_token(), **{"retries": PATIENT_RETRIES, **options})

    def connection(self, url: str) -> ConnectionOptions:
        """Return what an executor needs to reach the server."""
        own = self._token_files.get(url.rstrip("/"))
        return ConnectionOptions(
            server=url.rstrip("/"),
            token=self._token if own is None else None,
            token_file=own or self._token_file,
            retries=PATIENT_RETRIES,
        )

    def reading(self, url: str) -> dict[str, str]:
        """Return the options with which `format("topics")` reads from the server, with the key and limit of the job."""
        limit = self.max_bytes_per_second
        return self.reaching(url) | ({} if limit is None else {"maxBytesPerSecond": str(limit)})

    def reaching(self, url: str) -> dict[str, str]:
        """Return the options with which `format("topics")` reaches the server, the key of the job included."""
        options: dict[str, Any] = msgspec.to_builtins(self.connection(url))  # under their names of the source
        return {name: str(value) for name, value in options.items() if value is not None}

    # --- reporting

    def _note_lags(self) -> None:
        """Update the lags of rows whose topic is in `reached`. The last ones may be stale if a server does not answer.

        This may run in another thread than the work, so it has its own client.
        """
        rows_of: dict[str, list[TopicReport]] = {}
        for row in list(self.report.topics):
            url = row.server or next(iter(self._servers), "")
            if (url, row.topic) in self.reached:
                rows_of.setdefault(url, []).append(row)
        lags: list[int | None] = []
        for url, rows in rows_of.items():
            try:
                with self.client(url, **BRIEF) as client:
                    states = states_of(client, {row.topic for row in rows})
            except (TopicsError, BadOption):
                states = {}
                lags.append(None)
            for row in rows:
                state, (epoch, done) = states.get(row.topic), self.reached[url, row.topic]
                row.lag = None if state is None else max(state.head_seq - (done if epoch == state.epoch else 0), 0)
                lags.append(row.lag or 0)
        if self.sums_lags:
            self.report.figures["lag"] = None if None in lags else sum(lag or 0 for lag in lags)

    def publish(self) -> None:
        """Append the report to `sys:pipelines` of each server, except in a dry run. Warn if the key may not write."""
        self._published_s = time.monotonic()
        self._published += 1
        self._note_lags()
        if self.dry_run:
            return
        record = {"data": msgspec.Raw(msgspec.json.encode(self.report)), "tag": self.report.pipeline}
        for url in self._servers:
            try:
                with self.client(url, **BRIEF) as client:
                    key = f"{self.report.run_id}/{self._published}"
                    client.append(RUNS, [record], idempotency_key=key, create=True, config=RUNS_CONFIG)
            except (TopicsError, BadOption) as problem:
                self.warn(f"the report could not be written to {RUNS} of {url}: {problem}")


def report_of(error: BaseException, *, pipeline: str, dry_run: bool) -> RunReport:
    """Return the report of a failed run; an empty one if it failed before the job began."""
    known = error.__dict__.get("report")
    if isinstance(known, RunReport):
        return known
    report = RunReport(pipeline=pipeline, run_id="", dry_run=dry_run)
    report.fail(_problem(error, resumes=False, began=False))
    return report


def _problem(error: BaseException, *, resumes: bool, began: bool) -> RunProblem:
    step = next_step(error, resumes=resumes, began=began)
    return RunProblem(kind=kind_of(error).wire, message=explain(error), next=step)


def _active_session() -> SparkSession | None:
    """Return the Spark session that runs in this process, without importing Spark if there is none."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def check_may_delete(client: Client, topic: str) -> None:
    """Raise if the key may not delete from the topic, before the run changes anything."""
    client.delete(topic, before_seq=1, dry_run=True)


__all__ = ["BadUsage", "Failed", "JobOptions", "PipelineJob", "RunReport", "TopicReport", "check_may_delete"]
