"""`make demo-pipeline`: a lake takes over what topics cannot keep, and nothing goes missing in silence.

Two small topics get far more than their caps hold while an archive runs beside them. `orders` rejects what it has no
room for, and holds for the archive: its writer is told to wait, and no order is lost. `clicks` evicts whatever the
archive thinks of it, and one burst is larger than its cap: what went before it was archived is a gap, told and written
down. In the end a reader who asks for both sees one history, and an audit proves that every seq is accounted for.

Server, lake and checkpoint live in a temporary directory. The picture stays: demo-pipeline.svg, or what you name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import picture
from picture import Sample, Story

from topics.client import Client
from topics.client.request import Record, Tombstone
from topics.errors import Code, TopicsError

CAP = 6_000
BATCH = 500
ORDERS = 24_000
CLICKS = 24_000
CALM = 3_000  # that the archive keeps up with
BURST = 9_000  # more than the cap
SAMPLE_S = 0.05
HOLD = {"archive": {"hold": True}}

BOLD, DIM, GREEN, RED, PLAIN = (
    ("\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[31m", "\x1b[0m") if sys.stdout.isatty() else [""] * 5
)


def say(text: str) -> None:
    print(text, flush=True)


def step(number: int, text: str) -> None:
    say(f"\n{BOLD}{number}. {text}{PLAIN}")


@contextmanager
def server(directory: Path) -> Iterator[str]:
    """A server of its own; its address."""
    port_file = directory / "port"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    env |= {"TOPICS_DATA_DIR": str(directory / "data"), "TOPICS_PORT_FILE": str(port_file), "TOPICS_LOG_LEVEL": "error"}
    running = subprocess.Popen([sys.executable, "-m", "topics", "serve", "--port", "0"], env=env)
    try:
        while not (port_file.exists() and port_file.read_text().strip()):
            if running.poll() is not None:
                raise SystemExit("the server did not start")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
    finally:
        running.terminate()
        running.wait()


class Watcher:
    """Looks at the topics many times a second, for the picture."""

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
    """Writes a topic full, in batches, and waits where it is told to."""

    def __init__(self, client: Client, watcher: Watcher, topic: str) -> None:
        self._client, self._watcher, self._topic = client, watcher, topic
        self.written, self.refused = 1, 0  # the first is there already

    def write(self, count: int, *, pause_s: float = 0.0) -> None:
        while count > 0:
            n = min(BATCH, count)
            records = [{"data": {"n": self.written + at}, "tag": f"user-{(self.written + at) % 97}"} for at in range(n)]
            waits, before = self._watcher.now(), self.refused
            while not self._taken(records):
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
    """Waits until the lake has everything."""
    while not errors:
        state = client.topic(topic)
        if state.archived_seq == state.head_seq:
            return
        time.sleep(0.05)


def started() -> Any:
    """A Spark session for all pipelines of this run: starting one takes longer than all of them."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from topics.spark import session
    from topics.spark.pipelines.job import SESSION
    from topics.spark.pipelines.quiet import quiet_start

    with quiet_start():
        config = {**SESSION, "spark.sql.shuffle.partitions": "1", "spark.log.level": "OFF"}
        return session("demo", master="local[2]", config=config)


def tell(url: str, lake: str, spark: Any, out: Path) -> bool:
    from topics.spark.pipelines.archive import archive
    from topics.spark.pipelines.audit import audit

    topics = ["orders", "clicks"]
    with Client(url) as client:
        client.put_topic("orders", cap_records=CAP, discard="reject", **HOLD)
        client.put_topic("clicks", cap_records=CAP, discard="old", **HOLD)
        for topic in topics:
            client.append(topic, [{"data": "the first"}])
    archive(url=url, lake=lake, topics=topics, spark=spark)  # workers start once, which is not what is shown here
    watcher = Watcher(url, topics)
    following, errors = threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            archive(url=url, lake=lake, topics=topics, follow=True, every_s=0.1, spark=spark, stop=following)
        except BaseException as error:
            errors.append(error)

    step(1, f"Two topics with room for {CAP:,} records get {ORDERS:,} each; an archive follows them into a lake")
    archiver = threading.Thread(target=follow)
    archiver.start()
    with Client(url) as one, Client(url) as two:
        orders, clicks = Writer(one, watcher, "orders"), Writer(two, watcher, "clicks")
        writing = threading.Thread(target=orders.write, args=(ORDERS - 1,), kwargs={"pause_s": 0.02})
        writing.start()
        clicks.write(CALM - 1)
        archived(two, "clicks", errors)
        clicks.write(BURST)  # at once, and more than the topic holds
        while clicks.written < CLICKS:
            archived(two, "clicks", errors)
            clicks.write(CALM)
        writing.join()
        say(f"   orders: {ORDERS:,} written; {orders.refused} times told to wait for the archive, nothing lost")
        say(f"   clicks: {CLICKS:,} written; a burst of {BURST:,} was more than the cap, so its oldest went at once")
        for topic in topics:
            archived(two, topic, errors)
    following.set()
    archiver.join()
    watcher.end()
    if errors:
        raise errors[0]

    step(2, "What the topics still have, and what comes back with the lake beside them")
    stories = [_story(url, lake, topic, watcher) for topic in topics]
    for story in stories:
        lost = sum(last - first + 1 for first, last, _ in story.gaps)
        say(
            f"   {story.topic}: {story.head:>7,} written   {len(story.live):>6,} live   {GREEN}{len(story.healed):>7,} "
            f"with the lake{PLAIN}   {RED if lost else DIM}{lost:>6,} in gaps{PLAIN}"
        )
        assert len(story.healed) + lost == story.head, "a seq is neither there nor told to be lost"
        say(f"   {picture.strip(story, colour=sys.stdout.isatty())}")

    step(3, "The audit")
    report = audit(url=url, lake=lake, topics=topics, spark=spark)
    from topics.cli.pipelines.audit import show

    say("   " + show(report).replace("\n", "\n   "))
    out.write_text(picture.draw(stories, cap=CAP, verdict="0 unexplained" if report.ok else "something is missing"))
    say(f"\n{BOLD}The picture: {out}{PLAIN}")
    return report.ok


def _story(url: str, lake: str, topic: str, watcher: Watcher) -> Story:
    with Client(url) as client:
        state = client.topic(topic)
        live = [item.seq for item in client.read(topic) if isinstance(item, Record)]
        healed, gaps = [], []
        for item in client.read(topic, lake=lake):
            if isinstance(item, Tombstone):
                picture.add_gap(gaps, item.gap_from, item.gap_to, item.reason)
            else:
                healed.append(item.seq)
    assert healed == sorted(set(healed)), "each seq once, in order"
    return Story(topic, state.head_seq, live, healed, gaps, watcher.samples[topic], watcher.waiting[topic])


def main() -> int:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-pipeline.svg").resolve()
    warnings.simplefilter("ignore")  # of pyspark, about packages that it does not know yet
    directory = Path(tempfile.mkdtemp(prefix="topics-demo-"))
    began = time.monotonic()
    try:
        say(f"{DIM}starting a server and Spark{PLAIN}")
        spark = started()
        with server(directory) as url:
            ok = tell(url, str(directory / "lake"), spark, out)
        spark.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    say(f"{DIM}{time.monotonic() - began:.0f} s{PLAIN}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
