"""Maintain: merge small files of a lake, and remove files that no version needs any more.

It needs no server. Tasks merge the files. An archive does the same in small steps, so this is for lakes whose archive
runs with `--merge 0`, and to remove old files at a chosen time. It may run while archives run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Unpack

from topics.lake import Lake, plan_merges
from topics.lake.table import KEPT_HOURS
from topics.plurals import counted
from topics.spark.pipelines.run.job import BadUsage, JobOptions, PipelineJob
from topics.spark.pipelines.run.report import RunReport
from topics.spark.topic_names import missing_in

MERGE_FILES = 2


def maintain(
    *,
    lake: str,
    topics: Sequence[str] = (),
    merge_files: int = MERGE_FILES,
    retention_hours: int = KEPT_HOURS,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Maintain the tables of these topics, or of all topics of the lake.

    At least `merge_files` small files are merged into one. Replaced files, and files of killed runs, are removed after
    `retention_hours`: until then, readers of an older version may need them, and a run may commit them.
    """
    if retention_hours < 0:
        raise BadUsage("retention_hours: a number of hours, 0 or more")
    if merge_files < 2:
        raise BadUsage("merge_files: 2 or more; a single file cannot be merged")
    with PipelineJob("maintain", **options) as job:
        opened = Lake(lake).existing()
        names = opened.topics()
        for topic in topics:
            if topic not in names:
                raise missing_in(opened.path, topic, names)
        chosen = list(dict.fromkeys(topics)) or names
        epochs = [one for topic in chosen for one in opened.table(topic).state().epochs.values()]
        if job.dry_run:
            groups = {(one.topic, one.epoch): plan_merges(one, min_files=merge_files) for one in epochs}
            merged = Counter({key: sum(map(len, found)) for key, found in groups.items()})
        else:
            job.step(f"merging files of {counted(len(chosen), 'topic')}")
            merged = opened.merge([(one.topic, one.epoch) for one in epochs], min_files=merge_files, run=job.run)
        for number, topic in enumerate(chosen, start=1):
            job.step(f"{'looking at' if job.dry_run else 'maintaining'} {topic}")
            count = sum(count for key, count in merged.items() if key[0] == topic)
            removed = opened.table(topic).vacuum(retention_hours=retention_hours, dry_run=job.dry_run)
            files = [file for archived in opened.table(topic).state().epochs.values() for file in archived.files]
            row = job.report.topic(topic, into=opened.path)
            row.size_bytes, row.unfit = sum(file.bytes for file in files), opened.unfit_in(topic)
            row.figures = {
                "merged": count, "removed_files": len(removed), "removed_bytes": sum(removed), "files": len(files),
            }  # fmt: skip
            if job.dry_run:
                old, size = counted(len(removed), "file"), counted(sum(removed), "byte")
                row.would.append(f"merge {counted(count, 'file')}, and remove {old}, {size}")
            job.progress.show(number, len(chosen), unit="topics")
        job.report.looked_at = len(job.report.topics)
        for name in ("merged", "removed_files", "removed_bytes"):
            job.report.figures[name] = sum(row.figures[name] for row in job.report.topics)
    return job.report
