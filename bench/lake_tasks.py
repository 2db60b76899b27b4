"""Measure the CPU of the tasks that read and rewrite files of a lake, and the share of the driver.

    python bench/lake_tasks.py [--files 40] [--rows 50000]

The tasks run one after another in this process: what is not in a task is the driver, which plans and commits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from topics.lake import Change, Lake, write_files
from topics.lake.lake import LakeErasure
from topics.lake.rewrite import Erasure, here
from topics.model.records import TagMatch
from topics.spark.pipelines.audit import check_file

EPOCH = 7
DATA = '{"sku": "KETTLE-%08d", "price": 4999, "customer": {"id": %d, "city": "Berlin", "street": "Torstr. %d"}}'


class Measured:
    """Runs tasks and adds up their CPU."""

    def __init__(self) -> None:
        self.tasks_s, self.tasks = 0.0, 0

    def __call__(self, items: list[Any], task: Any, **more: Any) -> list[Any]:
        began = time.process_time()
        found = here(items, task, **more)
        self.tasks_s += time.process_time() - began
        self.tasks += len(items)
        return found


def fill(lake: Lake, files: int, rows: int) -> None:
    for at in range(files):
        seqs = range(at * rows + 1, (at + 1) * rows + 1)
        batch = pa.record_batch(
            {
                "seq": pa.array(seqs, pa.int64()),
                "ts": pa.array([1_709_208_000_000_000 + seq for seq in seqs], pa.timestamp("us", "UTC")),
                "node": pa.array(["till-1"] * rows, pa.string()),
                "tag": pa.array(
                    [f"user-{at:04}-{seq % 1000:03}" if seq % 100 else "guest" for seq in seqs], pa.string()
                ),
                "meta": pa.nulls(rows, pa.string()),
                "data": pa.array([DATA % (seq, seq * 7919 % 100_003, seq % 200) for seq in seqs], pa.string()),
            }
        )
        change = Change(
            op="archive", topic="events", epoch=EPOCH, covered=(seqs[0], seqs[-1]),
            adds=write_files(lake.storage, "events", EPOCH, [batch]),
        )  # fmt: skip
        lake.commit(lake.table("events").state(), [change])


def measure(name: str, work: Callable[[Measured], object], size_bytes: float) -> None:
    run, began = Measured(), time.process_time()
    work(run)
    total_s = time.process_time() - began
    rate = f"{size_bytes / run.tasks_s / 1e6:,.0f} MB of JSON lines per CPU second" if run.tasks_s else "no task"
    driver_s = total_s - run.tasks_s
    print(f"{name}: {run.tasks} tasks, {run.tasks_s:.2f} s, {rate}; driver {driver_s:.3f} s, {driver_s / total_s:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=40)
    parser.add_argument("--rows", type=int, default=50_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        lake = Lake(str(Path(place, "lake")))
        lake.create()
        began = time.process_time()
        fill(lake, args.files, args.rows)
        json_bytes = args.files * args.rows * (len(DATA) + 60)
        files = lake.table("events").state().epoch(EPOCH).files
        stored = sum(file.bytes for file in files)
        print(
            f"{len(files)} files, {json_bytes / 1e6:.0f} MB of JSON lines, {stored / 1e6:.0f} MB in the lake; ", end=""
        )
        print(f"written in {time.process_time() - began:.1f} s")

        def erase(tag: TagMatch) -> Callable[[Measured], object]:
            return lambda run: LakeErasure(lake, ["events"], lambda *of: Erasure(match=tag), run=run).commit()

        def read_back(run: Measured) -> None:
            run(list(files))(files, lambda file: check_file(file, lake=lake.path))

        measure("read back (audit, trim)", read_back, json_bytes)

        def count(run: Measured) -> None:
            LakeErasure(lake, ["events"], lambda *of: Erasure(match=TagMatch("Eq", "guest")), run=run).count()

        measure("look for a tag of all files", count, json_bytes)
        measure("erase a tag of no file", erase(TagMatch("Eq", "zzz")), 0)
        measure("erase a tag of one file", erase(TagMatch("Eq", "user-0007-007")), json_bytes / args.files)
        measure("erase a tag of all files", erase(TagMatch("Eq", "guest")), json_bytes)
        lake = Lake(str(Path(place, "again")))
        lake.create()
        fill(lake, args.files, args.rows)
        measure("merge", lambda run: lake.merge([("events", EPOCH)], min_files=2, run=run), json_bytes)


if __name__ == "__main__":
    main()
