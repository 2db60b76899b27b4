"""Measure how a read of a lake with many files is planned, and what its tasks do before they read records.

    python bench/lake_plan.py [--files 50000] [--file-mb 20]

The table has a log, but no files: 50,000 files of 20 MB are 1 TB. A task of the plan carries its files. For comparison,
the script measures the CPU of a task that reads the log of the table instead. An erase is planned, too: of a tag that
the statistics of no file exclude. The table is made by another process, so that the memory is that of the plans.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from topics.lake import Lake
from topics.lake.delta_folder import Actions, Added, DeltaFolder
from topics.lake.lake import LakeErasure
from topics.lake.layout import PARTITIONS
from topics.lake.rewrite import Erasure, Rewritten
from topics.lake.storage import Storage
from topics.lake.table import TABLE_SCHEMA
from topics.model.records import TagMatch
from topics.spark.options import read_options
from topics.spark.source.readers import ReadPartition, TopicsReader

ROWS = 100_000  # of a file
FILES_AT_ONCE = 50_000  # of a commit


def make(place: str, files: int, file_bytes: int) -> None:
    """Write the log of a table with this many files."""
    lake = Lake(place)
    lake.create()
    folder = DeltaFolder(Storage(lake.storage.uri("events")), partitions=PARTITIONS)
    folder.create(TABLE_SCHEMA, name="events", properties={})
    folder.open()
    adds: list[Added] = []
    for at in range(files):
        ts = f"2024-02-{1 + at * 28 // files:02}T12:00:00.000000Z"
        low, high = {"seq": at * ROWS + 1, "ts": ts, "tag": f"t{at:08}"}, {"seq": (at + 1) * ROWS, "ts": ts, "tag": "u"}
        stats = {"numRecords": ROWS, "minValues": low, "maxValues": high, "nullCount": {"seq": 0, "ts": 0, "tag": 0}}
        path = f"epoch=7/date={ts[:10]}/{at * ROWS + 1:020d}-{at:016x}.parquet"
        adds.append(Added(path, file_bytes, msgspec.json.encode(stats).decode(), {"epoch": "7", "date": ts[:10]}))
        if len(adds) == FILES_AT_ONCE or at == files - 1:
            folder.write(Actions(adds=adds, facts={"topics/archived/7": (at + 1) * ROWS}))
            folder.open()
            adds.clear()
    folder.checkpoint()


def plan_erase(lake: str) -> tuple[float, int]:
    """Return the CPU seconds to choose the files that an erase of a tag must read, and their number."""
    chosen: list[Any] = []

    def run(items: list[Any], task: object, **more: object) -> list[Rewritten]:
        chosen.extend(items)
        return [Rewritten() for _ in items]

    began = time.process_time()
    LakeErasure(Lake(lake), ["events"], lambda *of: Erasure(match=TagMatch("Eq", "tz")), run=run).count()
    return time.process_time() - began, len(chosen)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--file-mb", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        lake = str(Path(place, "lake"))
        maker = multiprocessing.get_context("spawn").Process(target=make, args=(lake, args.files, args.file_mb << 20))
        maker.start()
        maker.join()
        assert maker.exitcode == 0
        began, before_mb = time.process_time(), peak_mb()
        options = read_options({"lake": lake, "lakeOnly": "true", "subscribe": "events"})
        parts = [part for part in TopicsReader(options).partitions() if isinstance(part, ReadPartition)]
        planned_s, planned_mb = time.process_time() - began, peak_mb()
        began = time.process_time()
        Lake(lake).snapshot().epochs("events")
        load_s = time.process_time() - began
        packed = [pickle.dumps(part) for part in parts]
        count, plan_mb = len(parts), sum(map(len, packed)) / 1e6
        began = time.process_time()
        files = 0
        for part in map(pickle.loads, packed):
            files += sum(len(span.archived.files) for span, _ in part.spans)
        task_s = (time.process_time() - began) / count
        del packed, parts
        erase_s, chosen = plan_erase(lake)
    size = args.files * (args.file_mb << 20)
    print(f"{args.files:,} files, {size / 1e12:.2f} TB: {count:,} partitions of {size / count / 1e6:.0f} MB")
    print(f"planning: {planned_s:.2f} s of CPU; the plan: {plan_mb:.1f} MB, {files:,} files in tasks")
    print(f"each task: {task_s * 1000:.2f} ms of CPU to unpack its part; {load_s:.2f} s to read the log instead")
    print(f"erase of a tag: {erase_s:.2f} s of CPU to choose {chosen:,} files")
    print(f"memory of this process: {before_mb:.0f} MB before, {planned_mb:.0f} MB planned, {peak_mb():.0f} MB at most")


if __name__ == "__main__":
    main()
