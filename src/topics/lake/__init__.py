"""A lake: archived topics as Parquet files, readable by every tool that reads Parquet.

    from topics.lake import Lake

Needs pyarrow (extra `spark`), but neither Spark nor a server. `layout` describes the files; `staging` describes how a
change survives a kill.
"""

from topics.lake.errors import Conflict, Damaged, LakeError, NoLake
from topics.lake.lake import Lake
from topics.lake.layout import GAP_SCHEMA, SCHEMA
from topics.lake.manifest import ArchivedEpoch, Change, File, Gap, Snapshot, Staged, joined
from topics.lake.rewrite import Rewritten, merge_files, plan_merges, rewrite_file
from topics.lake.staging import Staging
from topics.lake.write import write_files

__all__ = [
    "GAP_SCHEMA",
    "SCHEMA",
    "ArchivedEpoch",
    "Change",
    "Conflict",
    "Damaged",
    "File",
    "Gap",
    "Lake",
    "LakeError",
    "NoLake",
    "Rewritten",
    "Snapshot",
    "Staged",
    "Staging",
    "joined",
    "merge_files",
    "plan_merges",
    "rewrite_file",
    "write_files",
]
