"""The frame of every pipeline: session, report, progress, failure, and the record in `sys:pipelines`.

    def compact(*, url: str, topic: str, **options: Unpack[JobOptions]) -> Report:
        with Job("compact", servers=[url], **options) as job:
            job.step(f"reading {topic}")
            frame = job.spark.read.format("topics").options(**job.reading(url)).option("subscribe", topic).load()
            job.report.topic(topic).records = frame.count()
        return job.report

A pipeline keeps no state in here: a job that is killed at any line is run again by the same call.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict

import msgspec

from topics.client import Client
from topics.clock import SystemClock
from topics.errors import Code, TopicsError
from topics.spark.options import BadOption, Connection
from topics.spark.pipelines.run.failures import BadUsage, Failed, as_failed, attach, problem_of
from topics.spark.pipelines.run.progress import Progress, Silent
from topics.spark.pipelines.run.quiet_jvm import quiet_start
from topics.spark.pipelines.run.report import Report, TopicReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RUNS = "sys:pipelines"
RUNS_CONFIG = {"cap_records": 10_000}
TELL_EVERY_S = 10.0  # how often a job that follows tells how far it is
BEAT_S = 1.0  # how often a person sees that a step is still at work
FIRST_RETRIES = 2
TELL_RETRIES = 2
TELL_TIMEOUT_S = 10.0
ANEW = ("audit",)  # pipelines that keep nothing for the next run
PATIENT_RETRIES = 12  # a server that is being restarted is no reason to fail

SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


class JobOptions(TypedDict, total=False):
    """What every pipeline can be told besides its own arguments."""

    token: str | None
    token_file: str | None
    dry_run: bool
    master: str | None
    spark: SparkSession | None  # a session to use; without it one is started, and stopped at the end
    progress: Progress | None
    stop: threading.Event | None  # set from outside to end a job that follows
    started_ms: int | None  # when the command was given, where that was before the job was made


class Job:
    """One run of a pipeline."""

    def __init__(
        self,
        pipeline: str,
        *,
        servers: Sequence[str] = (),
        token_files: Mapping[str, str | None] | None = None,
        token: str | None = None,
        token_file: str | None = None,
        dry_run: bool = False,
        master: str | None = None,
        spark: SparkSession | None = None,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
        started_ms: int | None = None,
    ) -> None:
        if token is not None and token_file is not None:
            raise BadUsage("token and token_file: give one of them")
        began_ms = SystemClock().now_ms() if started_ms is None else started_ms
        self.report = Report(pipeline=pipeline, run_id=secrets.token_hex(8), started_ms=began_ms, dry_run=dry_run)
        self.dry_run = dry_run
        self.progress: Progress = progress or Silent()
        self.stopping = stop or threading.Event()
        self._servers = tuple(dict.fromkeys(url.rstrip("/") for url in servers))
        self._token, self._token_file = token, None if token_file is None else os.path.abspath(token_file)
        self._token_files = {
            url.rstrip("/"): os.path.abspath(file) for url, file in (token_files or {}).items() if file is not None
        }
        self._master = master
        self._spark, self._owns_spark = spark, False
        self._told = time.monotonic()
        self._tellings = 0
        self._follows = self._began = False
        self._step = ""
        self._working_since: float | None = None
        self.sums: dict[str, Callable[[], int | None]] = {}  # figures made of what was noted for the lags
        self._lags: list[tuple[str, Callable[[Client], None], Callable[[], None]]] = []
        self._over = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="topics-pipeline", daemon=True)

    # --- the run

    def __enter__(self) -> Self:
        try:
            for url in self._servers:
                self._check_answers(url)
        except BaseException as error:
            self._fail(error)
            raise
        self._began = True
        self._heart.start()
        return self

    def _check_answers(self, url: str) -> None:
        """A mistyped address or key shows at once, not after the patience that a running job has."""
        try:
            with Client(url, token=self.connection(url).read_token(), retries=FIRST_RETRIES) as client:
                next(client.topics(RUNS), None)
        except ValueError as error:
            raise BadUsage(str(error)) from None
        except TopicsError as error:
            if error.code is not Code.FORBIDDEN:  # the key may be for something else than reading
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._heart.join()
        told = None if error is None else as_failed(error)
        if told is None:
            self.report.ended_ms = SystemClock().now_ms()
            self.report.state = "stopped" if self.stopping.is_set() else "done"
        else:
            self._fail(told)
        self.tell()
        self.progress.close()
        if self._owns_spark and self._spark is not None:
            with suppress(Exception):  # a signal to the whole group has ended Java already; the work is done and told
                self._spark.stop()
        if told is not error and told is not None:
            raise told from error

    def _fail(self, error: BaseException) -> None:
        """The report says so, and the failure carries it to whoever catches it."""
        self.report.ended_ms = SystemClock().now_ms()
        self.report.fail(problem_of(error, resumes=self._resumes, began=self._began))
        attach(error, self.report)

    @property
    def _resumes(self) -> bool:
        """Whether the same command goes on where this run stopped, because this one has left something."""
        return self._began and not self.dry_run and self.report.pipeline not in ANEW

    def step(self, text: str) -> None:
        self._step = text
        self.progress.step(text)
        self._working_since = time.monotonic()

    def work(self) -> None:
        """The step goes on after a rest."""
        if self._working_since is None:
            self._working_since = time.monotonic()

    def rest(self) -> None:
        """There is nothing to do but to wait for more."""
        self._working_since = None

    def warn(self, text: str) -> None:
        """Shown now, and kept in the report."""
        if text not in self.report.warnings:
            self.progress.warn(text)
        self.report.warn(text)

    def rounds(self, *, follow: bool) -> Iterator[int]:
        """One round, or rounds until somebody stops the job. A round that finds nothing new should wait by itself."""
        number = 0
        self._follows = follow
        while number == 0 or (follow and not self.stopping.is_set()):
            yield number
            number += 1

    def _beat(self) -> None:
        """Beside the work, which may be one long Spark job: shows that it goes on, and tells how far it is."""
        while not self._over.wait(BEAT_S):
            since = self._working_since
            if since is not None:
                self.progress.beat(time.monotonic() - since)
            if self._follows and time.monotonic() - self._told > TELL_EVERY_S:
                self.tell()

    # --- Spark and servers

    @property
    def spark(self) -> SparkSession:
        """The session; started when it is first asked for, so that a dry run of the driver's alone needs no Java."""
        if self._spark is None:
            from pyspark.sql import SparkSession

            from topics.spark.spark_session import register, session

            running = SparkSession.getActiveSession()
            if running is not None:
                self._spark = register(running)
            else:
                interrupted = self._step
                self.step("starting Spark")
                with quiet_start():
                    name = f"topics {self.report.pipeline}"
                    self._spark = session(name, master=self._choose_master(), config=SESSION)
                self._owns_spark = True
                if interrupted:
                    self.step(interrupted)  # what takes long now is not the start any more
        return self._spark

    def client(self, url: str) -> Client:
        """To be closed by whoever asked for it."""
        return Client(url, token=self.connection(url).read_token(), retries=PATIENT_RETRIES)

    def connection(self, url: str) -> Connection:
        """What executors need to reach a server."""
        own = self._token_files.get(url.rstrip("/"))
        return Connection(
            servers=(url.rstrip("/"),),
            token=self._token if own is None else None,
            token_file=own or self._token_file,
            retries=PATIENT_RETRIES,
        )

    def reading(self, url: str) -> dict[str, str]:
        """Options of `format("topics")`, reader or writer, that reach a server with the job's key."""
        known = self.connection(url)
        options = {"url": known.servers[0], "retries": str(known.retries)}
        if known.token is not None:
            options["token"] = known.token
        if known.token_file is not None:
            options["tokenFile"] = known.token_file
        return options

    def _choose_master(self) -> str | None:
        """None under spark-submit, which has chosen already; everywhere else this machine with all its cores."""
        if self._master is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
            return self._master
        return "local[*]"

    # --- telling

    def lags(self, url: str, note: Callable[[Client], None], forget: Callable[[], None]) -> None:
        """Has `note` called whenever a report is made, to note lags by the heads of then.

        It may be called beside the work, so it gets a client of its own. Where the server does not answer, `forget`
        takes back what was noted: nobody knows how far behind it is.
        """
        self._lags.append((url, note, forget))

    def _note_lags(self) -> None:
        for url, note, forget in self._lags:
            try:
                with self._brief_client(url) as client:
                    note(client)
            except (TopicsError, BadOption):
                forget()
        self.report.figures.update({name: total() for name, total in self.sums.items()})

    def _brief_client(self, url: str) -> Client:
        token = self.connection(url).read_token()
        return Client(url, token=token, timeout_s=TELL_TIMEOUT_S, retries=TELL_RETRIES)

    def tell(self) -> None:
        """Appends the report as it is now to `sys:pipelines` of the servers; a key that may not only costs a warning.

        A dry run changes nothing, so it leaves no record either.
        """
        self._told = time.monotonic()
        self._tellings += 1
        self._note_lags()
        if self.dry_run:
            return
        record = {"data": msgspec.Raw(msgspec.json.encode(self.report)), "tag": self.report.pipeline}
        for url in self._servers:
            try:
                with self._brief_client(url) as client:
                    key = f"{self.report.run_id}/{self._tellings}"
                    client.append(RUNS, [record], idempotency_key=key, create=True, config=RUNS_CONFIG)
            except (TopicsError, BadOption) as problem:
                self.warn(f"the report could not be written to {RUNS} of {url}: {problem}")


def check_may_delete(client: Client, topic: str) -> None:
    """Raises where the key may not, by a delete of nothing: before a run has changed anything, not in the middle."""
    client.delete(topic, before_seq=1, dry_run=True)


__all__ = ["BadUsage", "Failed", "Job", "JobOptions", "Report", "TopicReport", "check_may_delete"]
