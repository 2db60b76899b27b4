"""The times of small and large jobs: in one process, on a cold Spark, on a warm one, and on a local cluster.

python bench/pipeline_times.py                            archive, audit and SQL of 10 to 50,000,000 records
python bench/pipeline_times.py --records 50000000         one size
python bench/pipeline_times.py --cluster 2,4,8            each pipeline with so many executors, and the driver's share

Starts a server of its own, and prints the rows of a table in Markdown. A time is that of the whole command, with the
start of Python. Needs a quiet machine; 50,000,000 records need about 20 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from archive import BATCH, TOPICS, below, fill, parents, server
from topics.spark.jvm import cache_folder

SIZES = "10,10000,1000000,5000000,50000000"
EXECUTOR_MB = 1024
MERGED_TOPICS, MERGED_FILES = 8, 4  # most topics of a run on a cluster, and small files of each
PAUSE_S = 2.0  # between two commands
SAMPLE_S = 0.2
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Cpu:
    """The CPU time of a command: of its executors, and of everything else below it, which is the driver.

    An executor is a JVM with the Python workers below it. Processes are looked at five times a second, so the last
    moments of each process are missing.
    """

    def __init__(self, pid: int) -> None:
        self._pid, self._used_s = pid, dict[int, float]()
        self._executors = set[int]()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> tuple[float, float]:
        """Return the seconds of the driver and of the executors."""
        self._ended.set()
        self._thread.join()
        executors_s = sum(used_s for pid, used_s in self._used_s.items() if pid in self._executors)
        return sum(self._used_s.values()) - executors_s, executors_s

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            children = parents()
            tree = set(below(children, self._pid)) | self._used_s.keys()  # a process may outlive its parent
            new = [pid for pid in tree - self._executors if _is_executor(pid)]
            self._executors.update(*(below(children, pid) for pid in {*new, *self._executors}))
            self._used_s |= {pid: used_s for pid in tree if (used_s := _used_s(pid)) is not None}


def _is_executor(pid: int) -> bool:
    try:
        return EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _used_s(pid: int) -> float | None:
    """Return the CPU time of a process, with that of its ended threads; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) * TICK_S


class Timed:
    """A command that has run: its elapsed seconds, its answer in JSON, and the CPU seconds of driver and executors."""

    def __init__(self, *words: object) -> None:
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        command = [*TOPICS, *map(str, words), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        cpu = Cpu(process.pid)
        out, err = process.communicate()
        self.elapsed_s = time.perf_counter() - began
        self.driver_s, self.executors_s = cpu.end()
        assert process.returncode == 0, out + err
        self.answer: Any = json.loads(out)

    def __str__(self) -> str:
        return f"{self.elapsed_s:.1f} s"


def own_cache(directory: Path) -> None:
    """Use no Spark that the user keeps in memory, and do not stop it: only the archive of classes is shared."""
    shared = cache_folder("spark")
    shared.mkdir(parents=True, exist_ok=True)
    own = directory / "cache" / "topics"
    own.mkdir(parents=True)
    (own / "spark").symlink_to(shared)
    os.environ["XDG_CACHE_HOME"] = str(own.parent)


def row(*cells: object) -> None:
    print(f"| {' | '.join(str(one) for one in cells)} |", flush=True)


def jobs(url: str, directory: Path, topic: str, *how: str) -> list[Timed]:
    """Run an archive and an audit of a topic, with a lake of their own, one after the other."""
    lake = directory / "lake"
    where = ("--url", url, "--topic", topic, "--lake", lake, *how)
    done = [Timed("pipeline", "archive", *where, "--new-lake"), Timed("pipeline", "audit", *where)]
    shutil.rmtree(lake)
    return done


def sizes(url: str, directory: Path, counts: list[int]) -> None:
    row("records", "one process: archive, audit", "a Spark of its own", "the Spark in memory", "there, `topics sql`")
    row(*["---"] * 5)
    for count in counts:
        topic = f"of-{count}"
        fill(url, [topic], count)
        plain = jobs(url, directory, topic, "--no-spark")
        cold = jobs(url, directory, topic)
        subprocess.run([*TOPICS, "spark", "start"], check=True, capture_output=True)
        try:
            jobs(url, directory, topic)  # of a new Spark, which is slower
            warm = jobs(url, directory, topic)
            query = ("sql", "--url", url, "--spark", f"select count(*) as n from {topic}")
            Timed(*query)
            counted = Timed(*query)
        finally:
            subprocess.run([*TOPICS, "spark", "stop"], check=True, capture_output=True)
        assert counted.answer == [{"n": count}], counted.answer
        row(f"{count:,}", *(", ".join(map(str, each)) for each in (plain, cold, warm, [counted])))


def cluster(url: str, directory: Path, count: int, executors: list[int]) -> None:
    """Run each stage with 2, 4, 8 … executors of one core: on several topics with small files each, and on one topic.

    The first stage has nearly no data: it is the start of driver and executors.
    """
    filled = max(1, min(count // MERGED_FILES // BATCH, MERGED_TOPICS))
    topics, made = [f"big-{number}" for number in range(filled)], directory / "made"
    on_server = ("--url", url)
    for part in range(MERGED_FILES):
        fill(url, topics, count // MERGED_FILES, first=part * count // MERGED_FILES)
        Timed("pipeline", "archive", *on_server, "--prefix", "big-", "--lake", made, "--merge", "0", "--no-spark")
    fill(url, ["one"], count)
    fill(url, ["few"], 10)
    row("stage", "executors", "whole command", "CPU of the driver", "of executors", "share of the driver")
    row(*["---"] * 6)
    for number in executors:
        lake, copy, target = (directory / f"{name}-{number}" for name in ("cluster", "copy", "target"))
        shutil.copytree(made, copy)
        target.mkdir()
        rollup = ("--window", "1 second", "--by", "tag", "--select", "sum(value:total::bigint) AS total")
        several = [f"--topic={topic}" for topic in topics]
        stages: dict[str, tuple[object, ...]] = {
            "start (audit of 10 records)": ("audit", *on_server, "--lake", made, "--topic=few"),
            "archive": ("archive", *on_server, *several, "--lake", lake, "--new-lake", "--merge", 0),
            "audit": ("audit", *on_server, "--lake", lake, *several),
            "maintain": ("maintain", "--lake", copy),
            "compact": ("compact", *on_server, "--topic=one", "--table", target / "compact"),
            "rollup": ("rollup", *on_server, "--topic=one", "--table", target / "rollup", *rollup),
        }
        with server(target) as (other, _):
            stages["mirror"] = ("mirror", "--from", url, "--to", other, *several)
            # Last, because it changes the topics, by one tag for each number of executors.
            stages["erase"] = ("erase", *on_server, *several, "--lake", lake, "--match", f"user-{number}")
            for name, words in stages.items():
                done = Timed("pipeline", *words, "--master", f"local-cluster[{number},1,{EXECUTOR_MB}]")
                assert done.answer["execution"]["engine"] == "spark", done.answer
                share = done.driver_s / (done.driver_s + done.executors_s)
                row(name, number, done, f"{done.driver_s:.1f} s", f"{done.executors_s:.1f} s", f"{share:.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="", help=f"sizes, separated by commas [{SIZES}]")
    parser.add_argument("--cluster", default="", help="numbers of executors, separated by commas")
    parser.add_argument("--dir", default=None, help="where server and lakes go (a real disk, not tmpfs)")
    args = parser.parse_args()
    counts = [int(one) for one in (args.records or ("1000000" if args.cluster else SIZES)).split(",")]
    directory = Path(tempfile.mkdtemp(prefix="topics-times-", dir=args.dir))
    try:
        own_cache(directory)
        with server(directory) as (url, _):
            if args.cluster:
                cluster(url, directory, counts[-1], [int(one) for one in args.cluster.split(",")])
            else:
                sizes(url, directory, counts)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
