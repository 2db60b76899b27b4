"""The fixed costs of an archive: a round with nothing new, and many small topics together or one after another.

python bench/archive_rounds.py              500 topics of 1,000 records
python bench/archive_rounds.py --topics 50  a quick look

Starts a server and one Spark session of its own. Every line is measured on that session, and again in this process
without Spark. The start of Spark is not part of any line.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from archive import record, server
from topics.client import Client
from topics.spark.pipelines.archive import archive

RECORDS = 1_000  # of each topic
ROUNDS = 7


def timed_s(url: str, lake: Path, topics: list[str], spark: Any) -> float:
    """Archive what is new in these topics. Return the elapsed seconds."""
    began = time.perf_counter()
    report = archive(url=url, lake=str(lake), topics=topics, spark=spark)
    elapsed_s = time.perf_counter() - began
    assert report.error is None, report.error
    return elapsed_s


def filled(url: str, name: str, count: int) -> list[str]:
    """Fill new topics, and return their names. A topic belongs to one lake, so every lake has topics of its own."""
    topics = [f"{name}-{number}" for number in range(count)]
    with Client(url) as client:
        for topic in topics:
            client.append(topic, [record(n) for n in range(RECORDS)])
    return topics


def compare(url: str, directory: Path, count: int, name: str, spark: Any) -> None:
    def run_s(lake: str, topics: list[str]) -> float:
        return timed_s(url, directory / f"{name}-{lake}", topics, spark)

    run_s("warm", filled(url, f"{name}-warm", 2))
    topics = filled(url, f"{name}-together", count)
    together_s = run_s("together", topics)
    alone_s = sum(run_s("alone", [topic]) for topic in filled(url, f"{name}-alone", count))
    print(f"{name}: {count} topics of {RECORDS:,} records")
    print(f"  together {together_s:.2f} s, one after another {alone_s:.2f} s: {alone_s / together_s:.1f} ×")
    for chosen in (topics[:1], topics):
        idle_ms = [1000 * run_s("together", chosen) for _ in range(ROUNDS)]
        print(f"  nothing new, topics: {len(chosen)}: median {median(idle_ms):.0f} ms, least {min(idle_ms):.0f} ms")


def main() -> None:
    from topics.spark import session

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=500)
    parser.add_argument("--dir", default=None, help="where server and lakes go (a real disk, not tmpfs)")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="topics-rounds-", dir=args.dir))
    spark = session("bench", master="local[*]", config={"spark.ui.enabled": "false", "spark.log.level": "ERROR"})
    try:
        with server(directory) as (url, _):
            compare(url, directory, args.topics, "spark", spark)
            compare(url, directory, args.topics, "process", False)
    finally:
        spark.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
