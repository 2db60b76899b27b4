"""Remove files that a table does not need any more.

Three kinds of files are not part of the newest version: replaced files, which readers of older versions may still need;
files of a run that was killed before its commit; and files of a run that is about to commit them. The first kind is
known from the log. The second is distinguished from the third as follows:

- A file of an archive run begins at a seq. Once the table has archived that seq, no run can commit the file any more,
  because its commit would conflict.
- A file that replaces others, with seqs of a file that an erasure has removed, and that was written before the commit
  of the erasure, was made from the removed file. Its commit would conflict as well.
- Any other file is removed when it is older than the retention.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from topics.lake.archived import Change, File, TopicState
from topics.lake.layout import parse_path
from topics.lake.table import KEPT_HOURS, TopicTable


class Vacuumed(Struct, kw_only=True):
    """The result of a vacuum."""

    files: int = 0
    bytes: int = 0


def vacuum(table: TopicTable, *, retention_hours: int | None = None, dry_run: bool = False) -> Vacuumed:
    """Remove all files that no version needs that is younger than the retention, by default a week."""
    hours = KEPT_HOURS if retention_hours is None else retention_hours
    if table.delta() is None:
        return Vacuumed()
    sizes = {one.path: one.size_bytes for one in table.files()}
    found = table.vacuum(hours, dry_run=dry_run)
    return Vacuumed(files=len(found), bytes=sum(sizes.get(path, 0) for path in found))


def remove_dead_files(table: TopicTable, state: TopicState) -> int:
    """Remove the files of killed archive runs. Return how many there were."""
    dead = [path for path in table.strays() if _is_dead(path, state)]
    for path in dead:
        table.remove(path)
    return len(dead)


def purge(table: TopicTable, state: TopicState, removed: Iterable[File]) -> TopicState:
    """Remove what an erasure has replaced, with the log of the versions before it. Return the state afterwards.

    The state must be the one of the erasure's commit, or later. A purge that was killed is repeated by the next one.
    """
    table.checkpoint()
    table.vacuum(0, full=False)
    ranges = [(file.first, file.last) for file in removed]
    committed_ns = table.log_time_ns(state.version)
    for stray in table.stray_files():
        named = parse_path(stray.path)
        if named is None or named.last is None:
            is_dead = _is_dead(stray.path, state)
        else:
            touches = any(named.first <= last and (named.last or 0) >= first for first, last in ranges)
            is_dead = touches and stray.modified_ns < committed_ns
        if is_dead:
            table.remove(stray.path)
    table.checkpoint()
    table.forget_log()
    return table.commit(table.state(), [Change(op="purge", topic=table.topic, epoch=0)])


def _is_dead(path: str, state: TopicState) -> bool:
    """Return whether a file of an archive run can never be committed."""
    named = parse_path(path)
    return named is not None and named.last is None and named.first <= state.epoch(named.epoch).archived_to
