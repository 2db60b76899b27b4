"""A lake: archived topics as Delta tables, readable by every program that reads Delta.

    from topics.lake import Lake

Needs pyarrow and deltalake (extra `lake`), but neither Spark nor a server. `layout` describes the files, and `table`
how progress, gaps and changes are committed.
"""

from topics.lake.archived import ArchivedEpoch, Change, File, Gap, TopicState, joined
from topics.lake.columns import BadColumns, TypedColumns
from topics.lake.errors import Conflict, Damaged, LakeError, NoLake
from topics.lake.files import write_files
from topics.lake.lake import Lake, Snapshot
from topics.lake.layout import SCHEMA
from topics.lake.rewrite import plan_merges

__all__ = [
    "SCHEMA",
    "ArchivedEpoch",
    "BadColumns",
    "Change",
    "Conflict",
    "Damaged",
    "File",
    "Gap",
    "Lake",
    "LakeError",
    "NoLake",
    "Snapshot",
    "TopicState",
    "TypedColumns",
    "joined",
    "plan_merges",
    "write_files",
]
