"""The Delta table of one topic: its newest state, and commits.

A commit adds and removes files and sets facts, at once. It is made from a base state: if the newest version does not
fit to the base any more, the commit raises `Conflict`, and the caller builds the change again.

Three kinds of files are not part of the newest version: replaced files, which readers of older versions may still need;
files of a run that was killed before its commit; and files of a run that is about to commit them. The first kind is
known from the log. The second is distinguished from the third as follows:

- A file of an archive run begins at a seq. Once the table has archived that seq, no run can commit the file any more,
  because its commit would conflict.
- A file that replaces others, with seqs of a file that an erasure has removed, and that was written before the commit
  of the erasure, was made from the removed file. Its commit would conflict as well.
- Any other file is removed when it is older than the retention.

The facts of a topic are:

    topics/archived/<epoch>                           the last archived seq
    topics/gap/<epoch>/<first>/<met at, ms>/<reason>  the last seq of the gap
    topics/trimmed/<epoch>                            the last seq that a trim has deleted from the topic
    topics/erased                                     the number of erasures
    topics/removed                                    the number of the last erasure that has replaced files
    topics/purged                                     the number of the last erasure whose old files were removed

So a gap is not a row, and no reader can take it for a record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from topics.lake.archived import ArchivedEpoch, Change, File, Gap, TopicState
from topics.lake.columns import BadColumns, TypedColumns
from topics.lake.delta_folder import Actions, Added, DeltaFolder, Facts
from topics.lake.errors import Conflict, Damaged
from topics.lake.files import NO_COLUMNS
from topics.lake.layout import LOG, PARTITIONS, SCHEMA, parse_path, topic_folder
from topics.lake.storage import Storage

ERASED, REMOVED, PURGED = "topics/erased", "topics/removed", "topics/purged"
KEPT_HOURS = 168  # how long replaced files stay for readers of older versions

PROPERTIES = {"delta.deletedFileRetentionDuration": f"interval {KEPT_HOURS} hours"}
COMMENTS = {  # catalogs show them
    "epoch": "identifies the topic between its creation and its deletion",
    "seq": "number of the record in its topic; unique within an epoch",
    "ts": "commit time",
    "node": "writer of the record",
    "tag": "tag of the record",
    "meta": "metadata of the record, a JSON object",
    "data": "payload of the record, JSON text as it was written",
    "date": "UTC date of ts",
}
TABLE_SCHEMA = pa.schema(
    [one.with_metadata({"comment": COMMENTS[one.name]}) for one in (*SCHEMA, pa.field("date", pa.date32()))]
)


class TopicTable:
    """The table of a topic. It need not exist. Not safe for several threads."""

    def __init__(self, storage: Storage, topic: str) -> None:
        self.topic = topic
        self._folder = topic_folder(topic)
        self._delta = DeltaFolder(Storage(storage.uri(self._folder)), partitions=PARTITIONS)
        self._storage, self.uri = self._delta.storage, self._delta.uri
        self._state = TopicState(topic=topic)

    @property
    def checkpoints(self) -> int:
        return self._delta.checkpoints

    # --- state

    def state(self) -> TopicState:
        """Return the newest state. Raise `Damaged` if the log lacks a file."""
        with self._delta.errors():
            return TopicState(topic=self.topic) if self._delta.open() is None else self._opened_state()

    def _opened_state(self) -> TopicState:
        """Return the state of the version that was opened last: to open a table, `deltalake` lists its whole log."""
        version = self._delta.version
        if version < self._state.version:
            raise Damaged(
                f"{self.uri} is at version {version}, but version {self._state.version} existed before: "
                "the lake was replaced by an older copy, or lacks files; restore them from a copy"
            )
        if version > self._state.version:
            known = self._delta.facts()
            epochs = epochs_of(known, self.topic, _files(self._folder, self._delta.files()))
            self._state = TopicState(
                topic=self.topic, version=version, epochs=epochs, erasures=known.get(ERASED, 0),
                removed=known.get(REMOVED, 0), purged=known.get(PURGED, 0),
            )  # fmt: skip
        return self._state

    def delta(self) -> DeltaTable | None:
        """Return the table as an object of `deltalake`, as of the newest version, or None if it does not exist."""
        self.state()
        return self._delta.table

    def typed(self) -> TypedColumns:
        return NO_COLUMNS if self._delta.table is None else TypedColumns.of_schema(self._delta.schema())

    def has_in_every_file(self, columns: Iterable[str]) -> bool:
        """Return whether topics wrote every file, with these columns: a file that is older than one lacks it.

        In a file that another program has merged, a column is NULL for the records of a file that lacked it.
        """
        if self.delta() is None:
            return True
        actions = self._delta.files()
        names = [f"null_count.{name}" for name in columns]
        if None in map(parse_path, actions.column("path").to_pylist()):
            return False
        return all(name in actions.column_names and not actions.column(name).null_count for name in names)

    # --- files

    def files(self) -> list[pafs.FileInfo]:
        """Return every file in the folder of the table, except the log, with paths relative to the table."""
        return [one for one in self._storage.files_in("") if not one.path.startswith(f"{LOG}/")]

    def stray_files(self) -> list[pafs.FileInfo]:
        """Return the files that neither the newest version nor a version younger than the retention has."""
        stored = self.files()  # before the state is read: a file that is committed meanwhile is known by then
        if self.delta() is None:
            return stored
        known = {
            file.path.removeprefix(f"{self._folder}/") for epoch in self._state.epochs.values() for file in epoch.files
        }
        with self._delta.errors():
            known.update(self._delta.vacuum(0, dry_run=True, full=False))
        return [one for one in stored if one.path not in known]

    def strays(self) -> list[str]:
        return sorted(one.path for one in self.stray_files())

    def remove_dead_files(self) -> int:
        """Remove the files of killed archive runs. Return how many there were."""
        state = self.state()
        dead = [path for path in self.strays() if _is_dead(path, state)]
        for path in dead:
            self._storage.remove(path)
        return len(dead)

    def vacuum(self, *, retention_hours: int = KEPT_HOURS, dry_run: bool = False) -> list[int]:
        """Remove all files that no version needs that is younger than the retention. Return their sizes in bytes."""
        if self.delta() is None:
            return []
        sizes = {one.path: one.size for one in self.files()}
        with self._delta.errors():
            return [sizes.get(path, 0) for path in self._delta.vacuum(retention_hours, dry_run=dry_run)]

    def purge(self, removed: Iterable[File]) -> None:
        """Remove the files that an erasure has replaced, with the log of the versions before it.

        The newest version that this object knows must be the commit of the erasure, or a later one. A purge that was
        killed is repeated by the next one.
        """
        state = self._state
        self._delta.checkpoint()
        with self._delta.errors():
            self._delta.vacuum(0, full=False)
        ranges = [(file.first, file.last) for file in removed]
        versions = {one.path: one.mtime_ns or 0 for one in self._storage.files_in(LOG)}
        committed_ns = versions.get(f"{LOG}/{state.version:020d}.json", 0)  # when the storage received the erasure
        for stray in self.stray_files():
            named = parse_path(stray.path)
            if named is None or named.last is None:
                is_dead = _is_dead(stray.path, state)
            else:
                touches = any(named.first <= last and named.last >= first for first, last in ranges)
                is_dead = touches and (stray.mtime_ns or 0) < committed_ns
            if is_dead:
                self._storage.remove(stray.path)
        self._delta.checkpoint()
        for one in self._storage.files_in(LOG):  # statistics in the log may contain values of erased records
            number = one.path.rpartition("/")[2].partition(".")[0]
            if number.isdigit() and int(number) < self._delta.log.checkpoint:
                self._storage.remove(one.path)
        self.commit(self.state(), [Change(op="purge", topic=self.topic, epoch=0)])

    # --- commits

    def create(self) -> None:
        """Create the table unless it exists.

        An archive run creates it before it reads the first record: an erasure then finds the table and marks it, and
        the run cannot commit records that it read before the erasure.
        """
        with self._delta.errors():
            description = f"records of topic {self.topic}; a row per record"
            self._delta.create(TABLE_SCHEMA, name=self.topic, properties=PROPERTIES, description=description)

    def add_columns(self, columns: TypedColumns) -> list[str]:
        """Add the typed columns that the table lacks, and return their names. Raise `BadColumns` if a type differs."""
        with self._delta.errors():
            self.create()
            self.state()
            known = dict(self.typed().fields)
            for name, kind in columns.fields:
                if known.get(name, kind) != kind:
                    raise BadColumns(f"column {name} of topic {self.topic} is {known[name]} in the lake, not {kind}")
            new = [field for field in columns.arrow_fields if field.name not in known]
            if new:
                self._delta.add_columns(new)
            return [field.name for field in new]

    def commit(
        self, base: TopicState, changes: Sequence[Change], *, note: Mapping[str, Any] | None = None
    ) -> TopicState:
        """Commit the changes as one version. Raise `Conflict` if the base was changed; then nothing is committed."""
        with self._delta.errors():
            self.create()
            above, adds, removes = f"{self._folder}/", list[Added](), list[str]()
            for change in changes:
                for file in change.adds:
                    partition: dict[str, str | None] = {"epoch": str(change.epoch), "date": file.date}
                    adds.append(Added(file.path.removeprefix(above), file.bytes, file.stats, partition))
                removes += [file.path.removeprefix(above) for file in change.removes]
            is_change = any(change.op != "merge" for change in changes)

            def check() -> Facts:
                newest, set_facts = self.state(), dict[str, int]()
                for change in changes:
                    _check(newest, base, change)
                    set_facts.update(facts_of(change, newest))
                return set_facts

            self._delta.commit(Actions(adds=adds, removes=removes, is_change=is_change, note=note), check)
            return self._opened_state()


def _check(newest: TopicState, base: TopicState, change: Change) -> None:
    """Raise `Conflict` if a change that was made from `base` does not fit to the newest state."""
    epoch = newest.epoch(change.epoch)
    if change.op == "erase" and any(
        one.archived_to > base.epoch(one.epoch).archived_to for one in newest.epochs.values()
    ):
        raise Conflict(f"topic {change.topic} was archived while its records were being erased")
    if change.covered is not None:
        if change.covered[0] != epoch.archived_to + 1:
            raise Conflict(f"topic {change.topic} was archived up to {epoch.archived_to} by another run")
        if newest.erasures != base.erasures:
            raise Conflict(f"records of topic {change.topic} were erased while they were being archived")
    there = {file.path for file in epoch.files} if change.removes else set()
    for file in change.removes:
        if file.path not in there:
            raise Conflict(f"{file.path} was replaced meanwhile")


def _is_dead(path: str, state: TopicState) -> bool:
    """Return whether a file of an archive run can never be committed."""
    named = parse_path(path)
    return named is not None and named.last is None and named.first <= state.epoch(named.epoch).archived_to


def _files(folder: str, actions: pa.Table) -> dict[int, list[File]]:
    """Return the files of each epoch. Raise `Damaged` if a file has no statistics, which other programs may omit."""
    found: dict[int, list[File]] = {}
    names = (
        "path", "size_bytes", "num_records", "min.seq", "max.seq", "min.ts", "max.ts", "partition.epoch",
        "partition.date", "min.tag", "max.tag", "null_count.tag",
    )  # fmt: skip
    if not actions.num_rows:
        return found
    missing = [None] * actions.num_rows  # no file has a tag, or other programs wrote all of them
    columns = (actions.column(name).to_pylist() if name in actions.column_names else missing for name in names)
    for path, size, count, first, last, min_ts, max_ts, epoch, date, low, high, untagged in zip(*columns, strict=True):
        if None in (count, first, last, min_ts, max_ts):
            raise Damaged(
                f"{folder}/{path} has no statistics of seq and ts: write it again with topics pipeline maintain"
            )
        tags = ("", "") if untagged == count else None if low is None or high is None else (low, high)
        found.setdefault(int(epoch), []).append(
            File(
                path=f"{folder}/{path}", date=str(date), first=first, last=last, rows=count, bytes=size,
                min_ts=_ms(min_ts), max_ts=_ms(max_ts), tags=tags,
            )
        )  # fmt: skip
    return found


def _ms(moment: datetime) -> int:
    utc = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(utc.timestamp() * 1000)


# --- facts


def facts_of(change: Change, base: TopicState) -> dict[str, int]:
    """Return the facts that a change sets.

    An archive change sets the number of erasures to its old value: if an erasure was committed meanwhile, the change
    may contain erased records and must conflict.
    """
    facts: dict[str, int] = {}
    if change.covered is not None:
        facts[f"topics/archived/{change.epoch}"] = change.covered[1]
        facts[ERASED] = base.erasures
    facts.update(fact_of_gap(change.epoch, gap) for gap in change.gaps)
    if change.trimmed_to is not None:
        known = base.epoch(change.epoch).trimmed_to
        facts[f"topics/trimmed/{change.epoch}"] = max(known, change.trimmed_to)
    if change.op == "erase":
        facts[ERASED] = base.erasures + 1
        if change.removes:
            facts[REMOVED] = base.erasures + 1
    if change.op == "purge":
        facts[PURGED] = base.removed
    return facts


def fact_of_gap(epoch: int, gap: Gap) -> tuple[str, int]:
    return f"topics/gap/{epoch}/{gap.first}/{gap.met_at}/{gap.reason}", gap.last


def epochs_of(facts: Facts, topic: str, files: Mapping[int, Sequence[File]]) -> dict[int, ArchivedEpoch]:
    """Return the epochs of a topic, from its facts and the files of each. Facts of other programs are ignored."""
    ends, trims, gaps = dict[int, int](), dict[int, int](), dict[int, list[Gap]]()
    for name, value in facts.items():
        match name.split("/", 5):
            case ["topics", "archived", epoch]:
                ends[int(epoch)] = value
            case ["topics", "trimmed", epoch]:
                trims[int(epoch)] = value
            case ["topics", "gap", epoch, first, met_at, reason]:
                gaps.setdefault(int(epoch), []).append(Gap(int(first), value, reason, int(met_at)))
    return {
        epoch: ArchivedEpoch(
            topic=topic, epoch=epoch, archived_to=ends.get(epoch, 0), trimmed_to=trims.get(epoch, 0),
            files=tuple(sorted(files.get(epoch, ()), key=lambda file: file.first)),
            gaps=tuple(sorted(gaps.get(epoch, ()), key=lambda gap: gap.first)),
        )
        for epoch in sorted({*files, *ends, *trims, *gaps})
    }  # fmt: skip
