"""Measure how a read of a lake with many files is planned, and what its tasks do before they read records.

    python bench/lake_plan.py [--files 50000] [--file-mb 20]

The table has a log, but no files: 50,000 files of 20 MB are 1 TB. A task of the plan carries its files. For comparison,
the script measures the CPU of a task that reads the log of the table instead.
"""

from __future__ import annotations

import argparse
import pickle
import tempfile
import time
from pathlib import Path

import msgspec

from topics.lake import Lake
from topics.lake.delta_folder import Actions, Added, DeltaFolder
from topics.lake.layout import PARTITIONS
from topics.lake.storage import Storage
from topics.lake.table import TABLE_SCHEMA
from topics.spark.options import read_options
from topics.spark.source.readers import ReadPartition, TopicsReader

ROWS = 100_000  # of a file


def make(place: str, files: int, file_bytes: int) -> None:
    """Write the log of a table with this many files."""
    lake = Lake(place)
    lake.create()
    folder = DeltaFolder(Storage(lake.storage.uri("events")), partitions=PARTITIONS)
    folder.create(TABLE_SCHEMA, name="events", properties={})
    adds = []
    for at in range(files):
        ts = f"2024-02-{1 + at * 28 // files:02}T12:00:00.000000Z"
        low, high = {"seq": at * ROWS + 1, "ts": ts, "tag": f"t{at:08}"}, {"seq": (at + 1) * ROWS, "ts": ts, "tag": "u"}
        stats = {"numRecords": ROWS, "minValues": low, "maxValues": high, "nullCount": {"seq": 0, "ts": 0, "tag": 0}}
        path = f"epoch=7/date={ts[:10]}/{at * ROWS + 1:020d}-{at:016x}.parquet"
        adds.append(Added(path, file_bytes, msgspec.json.encode(stats).decode(), {"epoch": "7", "date": ts[:10]}))
    folder.open()
    folder.write(Actions(adds=adds, facts={"topics/archived/7": files * ROWS}))
    folder.checkpoint()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--file-mb", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        lake = str(Path(place, "lake"))
        make(lake, args.files, args.file_mb << 20)
        began = time.process_time()
        options = read_options({"lake": lake, "lakeOnly": "true", "subscribe": "events"})
        parts = [part for part in TopicsReader(options).partitions() if isinstance(part, ReadPartition)]
        planned_s = time.process_time() - began
        began = time.process_time()
        Lake(lake).snapshot().epochs("events")
        load_s = time.process_time() - began
        packed = [pickle.dumps(part) for part in parts]
        began = time.process_time()
        files = 0
        for part in map(pickle.loads, packed):
            files += sum(len(span.archived.files) for span, _ in part.spans)
        task_s = (time.process_time() - began) / len(parts)
    size = args.files * (args.file_mb << 20)
    print(f"{args.files:,} files, {size / 1e12:.2f} TB: {len(parts):,} partitions of {size / len(parts) / 1e6:.0f} MB")
    print(
        f"planning: {planned_s:.2f} s of CPU; the plan: {sum(map(len, packed)) / 1e6:.1f} MB, {files:,} files in tasks"
    )
    print(f"each task: {task_s * 1000:.2f} ms of CPU to unpack its part; {load_s:.2f} s to read the log instead")


if __name__ == "__main__":
    main()
