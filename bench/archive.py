"""Time and memory of an archive: N records to a lake, which DuckDB and pyarrow then read back.

python bench/archive.py                     10 million records
python bench/archive.py --records 200000    a quick look

Starts a server of its own, fills one topic, and runs `topics pipeline archive` as a user would; then a second time, for
what has come since. What DuckDB and pyarrow read is compared with what was written: number of records, sum of the seqs,
sum of a field of their data. Memory is what is resident, shared pages divided among those who share them (PSS), sampled
while it runs. Progress goes to standard error, results to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from topics.client import Client

BATCH = 10_000
SAMPLE_S = 0.5
SHOW_EVERY_S = 5.0
MIB = 1 << 20
MODULUS = 9973
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
    """Start a server. Yield its URL and process id."""
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


class Ticker:
    """Prints a line on standard error every few seconds, to show progress of a long run."""

    def __init__(self) -> None:
        self._began = self._told = time.perf_counter()

    def show(self, text: str, *, now: bool = False) -> None:
        at = time.perf_counter()
        if now or at - self._told >= SHOW_EVERY_S:
            self._told = at
            print(f"  … {at - self._began:5.0f} s  {text}", file=sys.stderr, flush=True)


def fill(url: str, topics: list[str], count: int, *, first: int = 0) -> float:
    """Write records of about 100 bytes. Return the elapsed seconds."""
    began, ticker = time.perf_counter(), Ticker()
    with Client(url) as client:
        for at in range(first, first + count, BATCH):
            batch = [record(n) for n in range(at, min(at + BATCH, first + count))]
            client.append(topics[at // BATCH % len(topics)], batch)
            ticker.show(f"{at + len(batch) - first:,} of {count:,} records written")
    return time.perf_counter() - began


def record(n: int) -> dict[str, Any]:
    data = {"order": n, "sku": f"SKU-{n * 7919 % 5003}", "total": n % MODULUS, "text": f"{n * 2654435761:x}"}
    return {"data": data, "tag": f"user-{n % 1009}"}


class Memory:
    """The peak of the summed memory of these processes and their descendants."""

    def __init__(self, pids: dict[str, int], progress: Callable[[], str]) -> None:
        self._pids, self._progress = pids, progress
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
        ticker = Ticker()
        while not self._stop.wait(SAMPLE_S):
            held = ", ".join(f"{name} {peak / MIB:,.0f} MiB" for name, peak in self.peak_bytes.items())
            ticker.show(f"{self._progress()}; at most {held}")
            children = parents()
            for name, pid in self._pids.items():
                tree = below(children, pid)
                held = {one: _pss(one) for one in tree}
                self._note(name, sum(held.values()))
                java = {one for one in tree if _command(one).endswith("java")}
                if java:
                    self._note("jvm", sum(held[one] for one in java))
                    workers = {child for one in java for child in below(children, one)} - java
                    self._note("python workers", sum(held.get(one, 0) for one in workers))

    def _note(self, name: str, size: int) -> None:
        self.peak_bytes[name] = max(self.peak_bytes[name], size)


def parents() -> dict[int, list[int]]:
    """Return the children of each process that has some."""
    found: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except OSError:
            continue
    return found


def below(children: dict[int, list[int]], pid: int) -> list[int]:
    """Return a process and all below it."""
    found, waiting = [pid], [pid]
    while waiting:
        more = children.get(waiting.pop(), [])
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


def archive(url: str, server_pid: int, lake: Path, master: str, topics: list[str], expected: int) -> None:
    """Run the archive as a command, and print time and memory."""
    command = [*TOPICS, "pipeline", "archive", "--url", url, "--prefix", "bench", "--lake", str(lake)]
    began = time.perf_counter()
    errors = lake.parent / "archive.log"
    with errors.open("wb") as log:
        process = subprocess.Popen([*command, "--master", master, "--json"], stdout=subprocess.PIPE, stderr=log)
    pids = {"driver with all below it": process.pid, "server": server_pid}
    with Memory(pids, lambda: _archived(url, topics)) as memory:
        out, _ = process.communicate()
    wall_s = time.perf_counter() - began
    assert process.returncode == 0, errors.read_text()
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
    assert records == expected, f"{expected:,} records were new"


def _archived(url: str, topics: list[str]) -> str:
    with Client(url) as client:
        states = [client.topic(topic) for topic in topics]
    done, head = sum(state.archived_seq or 0 for state in states), sum(state.head_seq for state in states)
    return f"{done:,} of {head:,} records in the lake"


class Sums(NamedTuple):
    """The records that a reader of the lake must find."""

    records: int
    seqs: int
    totals: int  # of the field `total` of data

    def __str__(self) -> str:
        return f"{self.records:,} records, sum of seqs {self.seqs:,}, sum of data.total {self.totals:,}"


def written(url: str, topics: list[str], count: int) -> Sums:
    """Compute the expected records from the heads of the server, without reading records."""
    with Client(url) as client:
        heads = [client.topic(topic).head_seq for topic in topics]
    return Sums(sum(heads), sum(head * (head + 1) // 2 for head in heads), sum(n % MODULUS for n in range(count)))


def by_duckdb(lake: Path) -> Sums:
    import duckdb

    sums = [0, 0, 0]
    for dataset in tables(lake):
        query = """
            SELECT count(*), sum(seq)::BIGINT, sum((data->>'$.total')::BIGINT)::BIGINT, count(DISTINCT seq)
            FROM records"""
        [(*found, distinct)] = duckdb.from_arrow(dataset).query("records", query).fetchall()
        assert found[0] == distinct, f"{found[0] - distinct:,} records are there twice"
        sums = [one + more for one, more in zip(sums, found, strict=True)]
    return Sums(*sums)


def tables(lake: Path) -> list[Any]:
    """Return the tables of the lake as Arrow datasets."""
    from deltalake import DeltaTable

    return [DeltaTable(str(log.parent)).to_pyarrow_dataset() for log in sorted(lake.glob("*/_delta_log"))]


def by_pyarrow(lake: Path) -> Sums:
    import pyarrow.compute as pc

    records = seqs = totals = 0
    for batch in (one for dataset in tables(lake) for one in dataset.to_batches(columns=["seq", "data"])):
        if batch.num_rows:
            found = pc.struct_field(pc.extract_regex(batch["data"], r'"total": *(?P<total>[0-9]+)'), "total")
            records += batch.num_rows
            seqs += pc.sum(batch["seq"]).as_py()
            totals += pc.sum(found.cast("int64")).as_py()
    return Sums(records, seqs, totals)


def read_back(lake: Path, expected: Sums) -> None:
    print(f"written:  {expected}")
    for name, read in (("DuckDB: ", by_duckdb), ("pyarrow:", by_pyarrow)):
        began = time.perf_counter()
        found = read(lake)
        print(f"{name}  {found}, {time.perf_counter() - began:.1f} s")
        assert found == expected, f"{name.strip()} reads something else than was written"
    print("the lake holds what was written, each record once")


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that the server ends, too
    topics = [f"bench{number}" for number in range(args.topics)]
    directory = Path(tempfile.mkdtemp(prefix="topics-archive-", dir=args.dir))
    lake = directory / "lake"
    try:
        with server(directory) as (url, pid):
            first = 0
            for name, count in (("first run", args.records), ("second run, what is new", args.follow_up)):
                if not count:
                    continue
                print(f"--- {name}")
                print(f"filled: {count:,} records in {fill(url, topics, count, first=first):.1f} s", flush=True)
                first += count
                archive(url, pid, lake, args.master, topics, count)
                read_back(lake, written(url, topics, first))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
