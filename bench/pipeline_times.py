"""The times of small and large jobs: in one process, on a cold Spark, on a warm one, and on a local cluster.

python bench/pipeline_times.py                            archive and audit of 10 to 1,000,000 records, as commands
python bench/pipeline_times.py --records 50000000         one size
python bench/pipeline_times.py --cluster 2,4,8            archive, audit, maintain and erase with so many executors

Starts a server of its own. A time is that of the whole command, with the start of Python. Needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from archive import TOPICS, fill, server

EXECUTOR_MB = 1024
MERGED_TOPICS, MERGED_FILES = 8, 4  # topics of a run on a cluster, and small files of each
PAUSE_S = 2.0  # between two commands


def timed(*words: object) -> tuple[float, dict[str, object]]:
    """Run a pipeline. Return the elapsed seconds and the report."""
    time.sleep(PAUSE_S)
    began = time.perf_counter()
    done = subprocess.run(
        [*TOPICS, "pipeline", *map(str, words), "--json"], capture_output=True, text=True, check=False
    )
    elapsed_s = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    return elapsed_s, json.loads(done.stdout)


def row(*cells: object) -> None:
    print(f"| {' | '.join(str(one) for one in cells)} |", flush=True)


def jobs(url: str, directory: Path, topic: str, name: str, *how: str) -> list[str]:
    """Return the times of an archive and an audit of a topic to a lake of their own, one after the other."""
    lake = directory / f"{topic}-{name}"
    where = ("--url", url, "--topic", topic, "--lake", lake, *how)
    return [f"{timed('archive', *where, '--new-lake')[0]:.1f} s", f"{timed('audit', *where)[0]:.1f} s"]


def sizes(url: str, directory: Path, counts: list[int]) -> None:
    row("records", "one process: archive, audit", "cold Spark", "warm Spark")
    row(*["---"] * 4)
    for count in counts:
        topic = f"of-{count}"
        fill(url, [topic], count)
        plain = jobs(url, directory, topic, "process", "--no-spark")
        cold = jobs(url, directory, topic, "cold")
        subprocess.run([*TOPICS, "spark", "start"], check=True, capture_output=True)
        try:
            jobs(url, directory, topic, "first")  # of a new Spark, which is slower
            warm = jobs(url, directory, topic, "warm")
        finally:
            subprocess.run([*TOPICS, "spark", "stop"], check=True, capture_output=True)
        row(f"{count:,}", ", ".join(plain), ", ".join(cold), ", ".join(warm))


def cluster(url: str, directory: Path, count: int, executors: list[int]) -> None:
    """Run each stage with 2, 4, 8 … executors of one core, on topics with several small files each.

    With more cores than executors, times of two numbers of executors show the share of the driver: the part that does
    not become shorter.
    """
    topics, made = [f"big-{number}" for number in range(MERGED_TOPICS)], directory / "made"
    server = ("--url", url)
    for part in range(MERGED_FILES):
        fill(url, topics, count // MERGED_FILES, first=part * count // MERGED_FILES)
        timed("archive", *server, "--prefix", "big-", "--lake", made, "--merge", "0", "--no-spark")
    row("executors", "archive", "audit", "erase, dry run", "maintain")
    row(*["---"] * 5)
    for number in executors:
        lake, copy = directory / f"cluster-{number}", directory / f"copy-{number}"
        shutil.copytree(made, copy)
        spark = ("--master", f"local-cluster[{number},1,{EXECUTOR_MB}]")
        times = [timed("archive", *server, "--prefix", "big-", "--lake", lake, *spark, "--new-lake", "--merge", "0")[0]]
        times.append(timed("audit", *server, "--lake", lake, *(f"--topic={topic}" for topic in topics), *spark)[0])
        times.append(timed("erase", *server, "--lake", lake, "--match", "user-7", "--dry-run", *spark)[0])
        elapsed_s, report = timed("maintain", "--lake", copy, *spark)
        figures = report["figures"]
        assert isinstance(figures, dict)
        assert figures["merged"] == MERGED_TOPICS * MERGED_FILES, figures
        row(number, *(f"{one:.1f} s" for one in (*times, elapsed_s)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", default="", help="sizes, separated by commas [10,10000,1000000]")
    parser.add_argument("--cluster", default="", help="numbers of executors, separated by commas")
    parser.add_argument("--dir", default=None, help="where server and lakes go (a real disk, not tmpfs)")
    args = parser.parse_args()
    counts = [int(one) for one in (args.records or ("1000000" if args.cluster else "10,10000,1000000")).split(",")]
    directory = Path(tempfile.mkdtemp(prefix="topics-times-", dir=args.dir))
    try:
        with server(directory) as (url, _):
            if args.cluster:
                cluster(url, directory, counts[-1], [int(one) for one in args.cluster.split(",")])
            else:
                sizes(url, directory, counts)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
