"""How long an archive takes, and what memory: N records to a lake, then the lake read by pyarrow and DuckDB.

python bench/archive.py                     10 million records
python bench/archive.py --records 200000    a quick look

Starts a server of its own, fills one topic, and runs `topics pipeline archive` as a user would. Memory is what is
resident, shared pages divided among those who share them (PSS), sampled while it runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from topics.client import Client

BATCH = 10_000
SAMPLE_S = 0.5
MIB = 1 << 20
TOPICS = [sys.executable, "-m", "topics"]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--topics", type=int, default=1, help="spread over so many topics")
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--dir", default=None, help="where server and lake go (a real disk, not tmpfs)")
    parser.add_argument("--follow-up", type=int, default=100_000, help="records of a second, incremental run; 0: none")
    return parser.parse_args()


@contextmanager
def server(directory: Path) -> Iterator[tuple[str, int]]:
    """URL and process id."""
    port_file = directory / "port"
    env = os.environ | {"TOPICS_DATA_DIR": str(directory / "data"), "TOPICS_PORT_FILE": str(port_file)}
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen([*TOPICS, "serve", "--port", "0"], env=env, stderr=log, stdout=subprocess.DEVNULL)
    try:
        while not (port_file.exists() and port_file.read_text().strip()):
            assert process.poll() is None, (directory / "server.log").read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}", process.pid
    finally:
        process.terminate()
        process.wait()


def fill(url: str, topics: list[str], count: int, *, first: int = 0) -> float:
    """Writes records of about 100 bytes; seconds."""
    began = time.perf_counter()
    with Client(url) as client:
        for at in range(first, first + count, BATCH):
            batch = [record(n) for n in range(at, min(at + BATCH, first + count))]
            client.append(topics[at // BATCH % len(topics)], batch)
    return time.perf_counter() - began


def record(n: int) -> dict[str, Any]:
    data = {"order": n, "sku": f"SKU-{n * 7919 % 5003}", "total": n % 9973, "text": f"{n * 2654435761:x}"}
    return {"data": data, "tag": f"user-{n % 1009}"}


class Memory:
    """The highest sum of what these processes, and all below them, hold at one moment."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self.peak_bytes = dict.fromkeys([*pids, "jvm", "python workers"], 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            parents = _parents()
            for name, pid in self._pids.items():
                tree = _below(parents, pid)
                held = {one: _pss(one) for one in tree}
                self._note(name, sum(held.values()))
                java = {one for one in tree if _command(one).endswith("java")}
                if java:
                    self._note("jvm", sum(held[one] for one in java))
                    workers = {child for one in java for child in _below(parents, one)} - java
                    self._note("python workers", sum(held.get(one, 0) for one in workers))

    def _note(self, name: str, size: int) -> None:
        self.peak_bytes[name] = max(self.peak_bytes[name], size)


def _parents() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    return found


def _below(parents: dict[int, list[int]], pid: int) -> list[int]:
    found, waiting = [pid], [pid]
    while waiting:
        more = parents.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def _pss(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def _command(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def archive(url: str, server_pid: int, lake: Path, master: str) -> None:
    command = [*TOPICS, "pipeline", "archive", "--url", url, "--prefix", "bench", "--lake", str(lake)]
    began = time.perf_counter()
    process = subprocess.Popen([*command, "--master", master, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with Memory({"driver with all below it": process.pid, "server": server_pid}) as memory:
        out, err = process.communicate()
    wall_s = time.perf_counter() - began
    assert process.returncode == 0, err.decode()
    report = json.loads(out)
    records = sum(row.get("records", 0) for row in report["topics"])
    size = sum(row.get("size_bytes", 0) for row in report["topics"])
    inside_s = (report["ended_ms"] - report["started_ms"]) / 1000
    print(
        f"archive: {records:,} records, {size / MIB:,.1f} MiB of Parquet in {report['figures'].get('files', 0)} files"
    )
    print(f"  time: {wall_s:.1f} s with the start of Spark, {inside_s:.1f} s in the pipeline")
    print(f"  rate: {records / wall_s:,.0f} records/s")
    for name, peak in memory.peak_bytes.items():
        print(f"  peak memory, {name}: {peak / MIB:,.0f} MiB")


def read_back(lake: Path, count: int) -> None:
    import duckdb
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    began = time.perf_counter()
    query = f"SELECT count(*), sum(seq), count(DISTINCT (topic, seq)) FROM '{lake}/topic=*/*/*.parquet'"
    [(rows, total, distinct)] = duckdb.sql(query).fetchall()
    print(f"DuckDB: {rows:,} rows, sum of seqs {total:,}, {distinct:,} distinct, {time.perf_counter() - began:.1f} s")
    began = time.perf_counter()
    seqs = ds.dataset(str(lake), partitioning="hive").to_table(["seq"])["seq"]
    print(f"pyarrow: {len(seqs):,} rows, sum of seqs {pc.sum(seqs).as_py():,}, {time.perf_counter() - began:.1f} s")
    assert rows == distinct == len(seqs) == count
    assert total == pc.sum(seqs).as_py()


def main() -> None:
    args = parse()
    topics = [f"bench{number}" for number in range(args.topics)]
    directory = Path(tempfile.mkdtemp(prefix="topics-archive-", dir=args.dir))
    try:
        with server(directory) as (url, pid):
            seconds = fill(url, topics, args.records)
            print(f"filled: {args.records:,} records in {seconds:.1f} s")
            archive(url, pid, directory / "lake", args.master)
            read_back(directory / "lake", args.records)
            if args.follow_up:
                fill(url, topics, args.follow_up, first=args.records)
                archive(url, pid, directory / "lake", args.master)
                read_back(directory / "lake", args.records + args.follow_up)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
