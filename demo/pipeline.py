"""`make demo-pipeline`: a lake keeps the records that topics evict, and no record is lost silently.

Two small topics get far more records than their caps hold, while an archive runs. `orders` rejects appends while it is
full, and holds records for the archive: its writer has to wait, and no order is lost. `clicks` evicts its oldest
records, and one burst is larger than its cap: records that are evicted before they are archived become a recorded gap.
At the end a reader of topic and lake sees one history, and an audit proves that every seq is accounted for.

Server and lake are in a temporary directory. The picture stays: demo-pipeline.svg, or the file that you name.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import picture
from picture import Sample, Step, Story

from topics.client import Client
from topics.client.request import Tombstone
from topics.errors import Code, TopicsError

RECORDS = 24_000  # to each topic
BATCHES = 48  # in which they are written
MOST_IN_A_REQUEST = 10_000  # unless the server has another limit
SAMPLE_S = 0.05
READ_S = 1.5  # duration of a read of the history, so that it shows in the picture
READ_STEPS = 60
HOLD = {"archive": {"hold": True}}
RULES = {
    "orders": "rejects appends while it is full, and keeps records until they are archived",
    "clicks": "evicts its oldest records, even unarchived ones: a burst is larger than its cap",
}
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a run of seconds ends before the optimizer pays off

BOLD, DIM, GREEN, RED, PLAIN = (
    ("\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[0m") if sys.stdout.isatty() else [""] * 5
)


def say(text: str) -> None:
    print(text, flush=True)


def step(number: int, text: str) -> None:
    say(f"\n{BOLD}{number}. {text}{PLAIN}")


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """Start a server. Yield its URL, and stop it at the end."""
    port_file = directory / "port"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    env |= {"TOPICS_DATA_DIR": str(directory / "data"), "TOPICS_PORT_FILE": str(port_file), "TOPICS_LOG_LEVEL": "error"}
    command = [sys.executable, "-m", "topics", "serve", "--port", "0"]
    with (directory / "server.log").open("wb") as log:
        running = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        while not (port_file.exists() and port_file.read_text().strip()):
            if running.poll() is not None:
                raise SystemExit(f"the server did not start:\n{(directory / 'server.log').read_text()}")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        running.terminate()
        running.wait()


class Watcher:
    """Samples the topics many times per second, for the picture."""

    def __init__(self, url: str, topics: list[str]) -> None:
        self._url, self._ended = url, threading.Event()
        self.samples: dict[str, list[Sample]] = {topic: [] for topic in topics}
        self.waiting: dict[str, list[tuple[float, float]]] = {topic: [] for topic in topics}
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic() - self._began

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        with Client(self._url) as client:
            while not self._ended.is_set():
                for topic, seen in self.samples.items():
                    state = client.topic(topic)
                    seen.append(Sample(self.now(), state.head_seq, state.earliest_seq, state.archived_seq or 0))
                self._ended.wait(SAMPLE_S)


class Writer:
    """Writes records to a topic in batches, and waits while the topic is full."""

    def __init__(
        self, client: Client, watcher: Watcher, errors: list[BaseException], topic: str, *, batch: int
    ) -> None:
        self._client, self._watcher, self._errors, self._topic = client, watcher, errors, topic
        self._batch = batch
        self.written, self.refused = 1, 0  # the topic has the first record already

    def write(self, count: int, *, pause_s: float = 0.0, batch: int = 0) -> None:
        while count > 0 and not self._errors:
            n = min(batch or self._batch, count)
            records = [{"data": {"n": self.written + at}, "tag": f"user-{(self.written + at) % 97}"} for at in range(n)]
            waits, before = self._watcher.now(), self.refused
            while not self._taken(records) and not self._errors:
                self.refused += 1
                time.sleep(0.1)
            if self.refused > before:
                self._watcher.waiting[self._topic].append((waits, self._watcher.now()))
            self.written += n
            count -= n
            time.sleep(pause_s)

    def _taken(self, records: list[Any]) -> bool:
        try:
            self._client.append(self._topic, records)
        except TopicsError as error:
            if error.code is not Code.TOPIC_FULL:
                raise
            return False
        return True


def archived(client: Client, topic: str, errors: list[BaseException]) -> None:
    """Wait until the lake has all records of the topic."""
    while not errors:
        state = client.topic(topic)
        if state.archived_seq == state.head_seq:
            return
        time.sleep(0.05)


def started() -> Any:
    """Start a Spark session for all pipelines of this run, because the start takes longer than all of them."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from topics.spark import session
    from topics.spark.jvm import quiet_start
    from topics.spark.pipelines.run.job import SESSION

    with quiet_start():
        config = {**SESSION, "spark.sql.shuffle.partitions": "1", "spark.log.level": "OFF"}
        config["spark.driver.extraJavaOptions"] = QUICK_JAVA
        return session("demo", master="local[2]", config=config)


def run_demo(url: str, lake: str, spark: Any, out: Path, *, records: int = RECORDS) -> bool:
    """Run the demo, with a quarter of the records as the cap of each topic. Return whether the audit was ok."""
    from topics.spark.pipelines.archive.driver import archive
    from topics.spark.pipelines.audit import audit, describe

    topics, cap = list(RULES), records // 4
    with Client(url) as client:
        client.put_topic("orders", cap_records=cap, discard="reject", **HOLD)
        client.put_topic("clicks", cap_records=cap, discard="old", **HOLD)
        for topic in topics:
            client.append(topic, [{"data": "the first"}])
    # Start the Spark workers now, so that their start is not in the picture.
    archive(url=url, lake=lake, topics=topics, spark=spark)
    watcher = Watcher(url, topics)
    try:
        step(1, f"Two topics with room for {cap:,} records get {records:,} each; an archive follows them into a lake")
        for topic in topics:
            say(f"   {topic} {RULES[topic]}")
        with following(lambda stop: archive(
            url=url, lake=lake, topics=topics, follow=True, every_s=0.1, spark=spark, stop=stop
        )) as errors:  # fmt: skip
            _write(url, watcher, errors, records=records, cap=cap)

        step(2, "A reader asks for everything from seq 1: of the topics alone, then with the lake beside them")
        readers = [Reader(url, lake, spark, topic, watcher) for topic in topics]
        for reader in readers:
            reader.join()
    finally:
        watcher.end()
    stories = [reader.story() for reader in readers]
    for reader, story in zip(readers, stories, strict=True):
        _print_healed(reader, story)

    step(3, "An audit looks for every seq, and compares what both have")
    report = audit(url=url, lake=lake, topics=topics, spark=spark)
    say("   " + describe(report).replace("\n", "\n   "))
    out.write_text(picture.draw(stories, cap=cap, unexplained=int(report.figures["unexplained"])), encoding="utf-8")
    say(f"\n{BOLD}The picture: {out}{PLAIN}")
    return report.ok


@contextmanager
def following(archive: Callable[[threading.Event], object]) -> Iterator[list[BaseException]]:
    """Run an archive in a thread until the end of the block. Yield the list of its errors, and raise the first one."""
    stop, errors = threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            archive(stop)
        except BaseException as error:
            errors.append(error)

    archiver = threading.Thread(target=follow)
    archiver.start()
    try:
        yield errors
    finally:
        stop.set()
        archiver.join()
    if errors:
        raise errors[0]


def _write(url: str, watcher: Watcher, errors: list[BaseException], *, records: int, cap: int) -> None:
    """Fill both topics: orders steadily, clicks in parts that the archive keeps up with, except for one burst."""
    calm, burst, batch = cap // 2, cap * 3 // 2, records // BATCHES
    with Client(url) as one, Client(url) as two:
        orders = Writer(one, watcher, errors, "orders", batch=batch)
        clicks = Writer(two, watcher, errors, "clicks", batch=batch)
        writing = threading.Thread(target=orders.write, args=(records - 1,), kwargs={"pause_s": 0.02})
        writing.start()
        clicks.write(calm - 1)
        archived(two, "clicks", errors)
        clicks.write(burst, batch=MOST_IN_A_REQUEST)  # the archive cannot come between
        while clicks.written < records and not errors:
            archived(two, "clicks", errors)
            clicks.write(min(calm, records - clicks.written))
        writing.join()
        for topic in RULES:
            archived(two, topic, errors)
    say(f"   orders: {orders.written:,} written; {orders.refused} times its writer had to wait for the archive")
    say(f"   clicks: {clicks.written:,} written; a burst of {burst:,} exceeded the cap, so old records were evicted")


class Reader:
    """Reads a topic alone, and then its whole history with the lake, in a thread."""

    def __init__(self, url: str, lake: str, spark: Any, topic: str, watcher: Watcher) -> None:
        self._url, self._lake, self._spark, self._topic, self._watcher = url, lake, spark, topic, watcher
        self.live: list[int] = []
        self.tombstones: list[Tombstone] = []  # of the topic alone
        self.healed: list[int] = []
        self.gaps: list[picture.Gap] = []
        self.reading: list[Step] = []
        self._head = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _read(self) -> None:
        with Client(self._url) as client:
            self._head = client.topic(self._topic).head_seq
            for item in client.read(self._topic):
                if isinstance(item, Tombstone):
                    self.tombstones.append(item)
                else:
                    self.live.append(item.seq)
        every = max(self._head // READ_STEPS, 1)
        for row in self._history():
            if row.gap_to is not None:
                picture.add_gap(self.gaps, row.seq, row.gap_to, row.reason)
                continue
            if len(self.healed) % every == 0:
                self.reading.append(Step(self._watcher.now(), row.seq))
                time.sleep(READ_S / READ_STEPS)
            self.healed.append(row.seq)
        self.reading.append(Step(self._watcher.now(), self.healed[-1]))

    def _history(self) -> list[Any]:
        """Return the records and gaps of topic and lake, by seq."""
        options = {"url": self._url, "subscribe": self._topic, "lake": self._lake, "failOnDataLoss": "false"}
        rows = self._spark.read.format("topics").options(**options).load()
        return list(rows.select("seq", "gap_to", "reason").orderBy("seq").collect())

    def story(self) -> Story:
        assert self.healed == sorted(set(self.healed)), "each seq once, in order"
        return Story(
            self._topic, RULES[self._topic], self._head, self.live, self.healed, self.gaps,
            self._watcher.samples[self._topic], self._watcher.waiting[self._topic], self.reading,
        )  # fmt: skip


def _print_healed(reader: Reader, story: Story) -> None:
    assert len(story.healed) + story.lost == story.head, "a seq is neither read nor reported as lost"
    for gap in reader.tombstones:
        say(f"   {story.topic} alone: a tombstone, seqs {gap.gap_from:,} to {gap.gap_to:,} are lost ({gap.reason})")
    say(
        f"   {story.topic}: {story.head:>7,} written   {len(story.live):>6,} live   {GREEN}{len(story.healed):>7,} "
        f"with the lake{PLAIN}   {RED if story.lost else DIM}{story.lost:>6,} in gaps{PLAIN}"
    )
    say(f"   {picture.strip(story, colour=sys.stdout.isatty())}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Archive, eviction, healing and audit in one run, with a picture.")
    parser.add_argument("out", nargs="?", type=Path, default=Path("demo-pipeline.svg"), help="[%(default)s]")
    parser.add_argument("--records", type=int, default=RECORDS, help="for each of the two topics [%(default)d]")
    args = parser.parse_args()
    if args.records < 400:
        parser.error("--records: 400 or more")
    return args


def main() -> int:
    args = parse()
    out: Path = args.out.resolve()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that the server is stopped as well
    warnings.simplefilter("ignore")  # pyspark warns about newer packages
    directory = Path(tempfile.mkdtemp(prefix="topics-demo-"))
    began = time.monotonic()
    try:
        say(f"{DIM}starting a server and Spark{PLAIN}")
        spark = started()
        with server(directory) as url:
            ok = run_demo(url, str(directory / "lake"), spark, out, records=args.records)
        spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    say(f"{DIM}{time.monotonic() - began:.0f} s{PLAIN}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
