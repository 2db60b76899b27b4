"""A lake: topics as Delta tables, with the files and gaps of each topic, and how far it is archived."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from topics.lake.archived import ArchivedEpoch, Change, File, Gap, TopicState, Unfit
from topics.lake.errors import Conflict, Damaged, NoLake
from topics.lake.layout import GAP_SCHEMA, LOG, MARKER, PARTITIONS, SCHEMA, topic_of
from topics.lake.rewrite import (
    LAST,
    Erasure,
    Rewrite,
    Rewritten,
    Run,
    here,
    plan_merges,
    rewrite,
    row_groups,
    rows_of,
)
from topics.lake.storage import Storage, with_remedies

if TYPE_CHECKING:
    from topics.lake.table import TopicTable

LOADED_AT_ONCE = 8  # tables

Key = tuple[str, int]  # topic and epoch


def _raise(key: Key, error: Damaged) -> None:
    raise error


class Snapshot:
    """The state of every topic, each as of its first use. Tables are versioned one by one."""

    def __init__(self, lake: Lake | None = None) -> None:
        self._lake = lake
        self._states: dict[str, TopicState] = {}
        self._topics: list[str] | None = None

    def topics(self) -> list[str]:
        """Return the names of all topics in the lake, sorted."""
        if self._topics is None:
            self._topics = [] if self._lake is None else self._lake.topics()
        return self._topics

    def state(self, topic: str) -> TopicState:
        if topic not in self._states:
            empty = TopicState(topic=topic)
            self._states[topic] = empty if self._lake is None else self._lake.table(topic).state()
        return self._states[topic]

    def load(self, topics: Sequence[str]) -> None:
        missing = [topic for topic in topics if topic not in self._states]
        if len(missing) > 1 and self._lake is not None:
            with ThreadPoolExecutor(LOADED_AT_ONCE) as threads:
                tables = [self._lake.table(topic) for topic in missing]
                states = threads.map(lambda table: table.state(), tables)
                self._states.update(zip(missing, states, strict=True))

    def epochs(self, topic: str) -> list[ArchivedEpoch]:
        """Return the archived epochs of a topic, oldest first."""
        return [epoch for _, epoch in sorted(self.state(topic).epochs.items())]

    def archived(self, topic: str, epoch: int) -> ArchivedEpoch | None:
        return self.state(topic).epochs.get(epoch)

    def is_newest(self) -> bool:
        """Return whether no topic that was used has changed since."""
        return self._lake is None or all(
            self._lake.table(topic).state().version == state.version for topic, state in self._states.items()
        )


class Lake:
    """The lake at a path or URL. The constructor does no I/O beyond a check of the path; tasks may receive a `Lake`."""

    def __init__(self, location: str) -> None:
        self.storage = Storage(location)
        self.path = self.storage.location
        self._unfit: dict[str, dict[str, Unfit]] = {}  # by topic, see `unfit_in`
        self._tables: dict[str, TopicTable] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Lake, (self.path,)

    # --- what there is

    def exists(self) -> bool:
        with with_remedies(self.path):
            return self.storage.read(MARKER) is not None

    def create(self) -> None:
        """Create the lake unless it exists. Raise `NoLake` if the place holds something else."""
        with with_remedies(self.path):
            if self.exists():
                return
            others = [name for name in self.storage.names() if not name.startswith(MARKER)]
            if others and not self.exists():  # another process may have created it meanwhile
                raise NoLake(
                    f"{self.path} is not empty and is not a lake: it contains {others[0]}; give an empty or a new place"
                )
            self.storage.write(MARKER, msgspec.json.encode({"format": "delta", "version": 1}))

    def existing(self) -> Lake:
        """Return the lake. Raise `NoLake` if there is none."""
        if not self.exists():
            raise NoLake(f"{self.path} is not a lake: topics pipeline archive creates one")
        return self

    def topics(self) -> list[str]:
        """Return the names of all topics in the lake, sorted."""
        folders = [name for name in self.storage.names() if not name.startswith(("_", "."))]
        return sorted(
            topic_of(name) for name in folders if not self.storage.is_local or self.storage.has_folder(f"{name}/{LOG}")
        )

    def table(self, topic: str) -> TopicTable:
        """Return the table of a topic, which need not exist."""
        from topics.lake.table import TopicTable  # deltalake takes long to import, and tasks of Spark may not need it

        with self._lock:
            if topic not in self._tables:
                self._tables[topic] = TopicTable(self.storage, topic)
            return self._tables[topic]

    def snapshot(self) -> Snapshot:
        """Return the newest state. Raise `NoLake` if there is no lake."""
        return Snapshot(self.existing())

    def ledger(self, topics: Iterable[str] | None = None) -> pa.Table:
        """Return every gap: topic, epoch, from_seq, to_seq, reason, met_at."""
        snapshot = self.snapshot()
        rows = [
            (topic, archived.epoch, gap.first, gap.last, gap.reason, gap.met_at * 1000)
            for topic in (snapshot.topics() if topics is None else topics)
            for archived in snapshot.epochs(topic)
            for gap in archived.gaps
        ]
        return pa.Table.from_pylist([dict(zip(GAP_SCHEMA.names, row, strict=True)) for row in rows], GAP_SCHEMA)

    # --- files

    def verify(self, file: File) -> None:
        """Read a file back. Raise `Damaged` if a page has a wrong checksum, or the rows are not those of the commit."""
        last, fits = 0, True
        for batch in rows_of(self.storage, file):
            seqs = batch.column("seq").to_numpy()
            fits &= bool(np.all(np.diff(seqs, prepend=last) > 0)) and (last > 0 or seqs[0] == file.first)
            last = int(seqs[-1])
        if not fits or last != file.last:
            raise Damaged(f"{self.storage.uri(file.path)}: its rows do not match its commit")

    def has(self, topic: str, epoch: int, files: Iterable[File]) -> bool:
        """Return whether the newest version still has all of these files: only such a file must exist."""
        there = {file.path for file in self.table(topic).state().epoch(epoch).files}
        return all(file.path in there for file in files)

    # --- records

    def read(
        self,
        topic: str,
        epoch: int,
        *,
        first: int = 1,
        last: int | None = None,
        columns: Sequence[str] | None = None,
        archived: ArchivedEpoch | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of an epoch from `first` to `last`, sorted by seq; of the newest state, or of `archived`.

        A batch has those typed columns among `columns` that its file has.
        If files are replaced and removed meanwhile, the read continues in the new files, after the last yielded record.
        """
        end = LAST if last is None else last
        names = SCHEMA.names if columns is None else list(columns)
        archived = archived or self.snapshot().archived(topic, epoch)
        while archived is not None:
            try:
                for group in _overlapping(archived.files_in(first, end)):
                    yield from self._within(epoch, group, first, end, names)
                    first = max(file.last for file in group) + 1
                return
            except Damaged:
                newer = self.table(topic).state().epochs.get(epoch)
                if newer is None or newer.files_in(first, end) == archived.files_in(first, end):
                    raise
                archived = newer

    def _within(
        self, epoch: int, group: Sequence[File], first: int, last: int, names: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of overlapping files within the range, sorted by seq.

        Files that topics has written do not overlap; files that another program has merged may.
        """
        if len(group) > 1:  # their typed columns may differ
            names = [name for name in names if name in SCHEMA.names]
        stored = [name for name in names if name not in PARTITIONS]
        needed = stored if "seq" in stored else [*stored, "seq"]
        batches = (batch for file in group for batch in row_groups(self.storage, file, needed, first=first, last=last))
        if len(group) > 1 and (every := list(batches)):
            batches = iter(pa.Table.from_batches(every).sort_by("seq").combine_chunks().to_batches())
        for batch in batches:
            seqs = batch.column("seq").to_numpy()
            low, high = int(np.searchsorted(seqs, first)), int(np.searchsorted(seqs, last, "right"))
            if low < high:
                part = batch.slice(low, high - low)
                if "epoch" in names:
                    part = part.append_column("epoch", pa.repeat(pa.scalar(epoch, pa.int64()), len(part)))
                yield part.select([name for name in names if name in part.schema.names])

    def history(
        self, archived: ArchivedEpoch, *, first: int = 1, last: int = LAST, typed: Sequence[str] = ()
    ) -> Iterator[pa.RecordBatch | Gap]:
        """Yield the records and gaps of a range, sorted by seq. Batches have those `typed` columns that a file has."""
        gaps, topic, epoch = archived.gaps_in(first, last), archived.topic, archived.epoch
        columns = [*SCHEMA.names, *typed]
        for batch in self.read(topic, epoch, first=first, last=last, columns=columns, archived=archived):
            rest = batch
            while gaps and rest.num_rows and gaps[0].first <= rest.column("seq")[-1].as_py():
                at = int(np.searchsorted(rest.column("seq").to_numpy(), gaps[0].first))
                if at:
                    yield rest.slice(0, at)
                yield gaps.pop(0)
                rest = rest.slice(at)
            if rest.num_rows:
                yield rest
        yield from gaps

    # --- changes

    def commit(
        self, base: TopicState, changes: Sequence[Change], *, note: Mapping[str, Any] | None = None
    ) -> TopicState:
        """Commit changes of one topic as one version. Raise `Conflict` if the base was changed."""
        state, unfit = self.table(base.topic).commit(base, changes, note=note), self.unfit_in(base.topic)
        for file in (file for change in changes for file in change.adds):
            unfit.update({name: one.and_(unfit.get(name)) for name, one in file.unfit.items()})
        return state

    def unfit_in(self, topic: str) -> dict[str, Unfit]:
        """Return how many values did not fit in the files that this object has committed and will commit, by column."""
        return self._unfit.setdefault(topic, {})

    def discard(self, files: Iterable[File]) -> None:
        """Remove files that will not be committed."""
        for file in files:
            self.storage.remove(file.path)

    def merge(
        self,
        epochs: Iterable[Key],
        *,
        min_files: int,
        run: Run = here,
        on_damage: Callable[[Key, Damaged], None] = _raise,
    ) -> Counter[Key]:
        """Merge the small files of these epochs, with one commit per merged file. Return the number of files merged.

        `run` merges the files of all epochs in tasks. Files that another process has replaced meanwhile are left to the
        next call.
        """
        bases, work = dict[str, TopicState](), list[Rewrite]()
        for topic, epoch in epochs:
            base = bases.setdefault(topic, self.table(topic).state())
            typed = self.table(topic).typed()
            for group in plan_merges(base.epoch(epoch), min_files=min_files):
                work.append(Rewrite(topic=topic, epoch=epoch, files=tuple(group), typed=typed))
        done: Counter[Key] = Counter()
        task, size_bytes = partial(rewrite, lake=self.path), attrgetter("size_bytes")
        results: list[Rewritten] = run(work, task, result=Rewritten, weight=size_bytes)
        for one, result in zip(work, results, strict=True):
            key = (one.topic, one.epoch)
            if result.new is None:
                if self.has(*key, one.files):
                    on_damage(key, Damaged(result.damage))
                continue
            change = Change(op="merge", topic=one.topic, epoch=one.epoch, adds=[result.new], removes=list(one.files))
            try:
                self.commit(bases[one.topic], [change])
            except Conflict:
                self.discard([result.new])
                continue
            done[key] += len(one.files)
        return done


def _overlapping(files: Iterable[File]) -> Iterator[list[File]]:
    """Yield groups of files that share seqs; a file that shares none is a group of its own."""
    group: list[File] = []
    for file in files:
        if group and file.first > max(one.last for one in group):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


# --- erasures


class LakeErasure:
    """Erases from these topics of a lake what `erasure_of(topic, epoch)` says.

    Tasks find the files that have records to erase, and write them again; this process plans and commits. A file never
    changes, so it is read and written once, however often other processes commit meanwhile.
    """

    def __init__(
        self,
        lake: Lake,
        topics: Iterable[str],
        erasure_of: Callable[[str, int], Erasure],
        *,
        run: Run = here,
    ) -> None:
        self._lake, self._erasure_of, self._run = lake, erasure_of, run
        self.topics = sorted(set(topics) & set(lake.topics()))
        self._bases: dict[str, TopicState] = {}
        self._written: dict[str, Rewritten] = {}  # by path of a file: what replaces it, and how many records it lost

    def count(self) -> dict[str, list[int]]:
        """Return how many records to erase each file has, by topic. Files that have none are left out."""
        found = self._process(self.topics, dry_run=True)
        counts = {topic: [self._written[_path(one)].removed for one in work] for topic, work in found.items()}
        self._written.clear()
        return counts

    def commit(self, *, note: Mapping[str, Any] | None = None) -> dict[str, list[int]]:
        """Erase, with one commit per topic, and return how many records each replaced file has lost, by topic.

        Every topic is marked as erased even if no record was found: an archive run that read its records before they
        were erased from the topic, and has not committed them yet, must read again. After the commit, the replaced
        files are removed, and so are the versions that had them.
        """
        done: dict[str, list[int]] = {}
        while left := [topic for topic in self.topics if topic not in done]:
            found = self._process(left)
            for topic in left:
                if self._commit_topic(topic, found[topic], note):
                    done[topic] = [self._written.pop(_path(one)).removed for one in found[topic]]
        return done

    def _process(self, topics: Iterable[str], *, dry_run: bool = False) -> dict[str, list[Rewrite]]:
        """Let tasks rewrite the files that may have records to erase, unless they have done so.

        Return the files that have some, as of the newest version of each table. Raise `Damaged` if one is damaged.
        """
        task, done = partial(rewrite, lake=self._lake.path, dry_run=dry_run), self._written
        while True:
            self._bases |= {topic: self._lake.table(topic).state() for topic in topics}
            found = {topic: list(self._candidates(topic)) for topic in topics}
            work = [one for every in found.values() for one in every if _path(one) not in done]
            results: list[Rewritten] = self._run(work, task, result=Rewritten, weight=attrgetter("size_bytes"))
            done |= {_path(one): result for one, result in zip(work, results, strict=True) if result.damage is None}
            for one, result in zip(work, results, strict=True):
                if result.damage is not None and self._lake.has(one.topic, one.epoch, one.files):
                    self._discard(done.values())
                    raise Damaged(result.damage)
            if all(_path(one) in done for one in work):  # else a file was replaced meanwhile
                return {topic: [one for one in work if done[_path(one)].removed] for topic, work in found.items()}

    def _candidates(self, topic: str) -> Iterator[Rewrite]:
        """Yield the files whose statistics do not exclude that they have records to erase."""
        typed = self._lake.table(topic).typed()
        for epoch, archived in self._bases[topic].epochs.items():
            erasure = self._erasure_of(topic, epoch)
            for file in archived.files:
                if (part := erasure.within(file)) is not None:
                    yield Rewrite(topic=topic, epoch=epoch, files=(file,), typed=typed, erasure=part)

    def _commit_topic(self, topic: str, work: list[Rewrite], note: Mapping[str, Any] | None) -> bool:
        """Return False if another process has changed the table meanwhile."""
        changes = [Change(op="erase", topic=topic, epoch=0)]
        for one in work:
            new = self._written[_path(one)].new
            adds = [] if new is None else [new]
            changes.append(Change(op="erase", topic=topic, epoch=one.epoch, adds=adds, removes=list(one.files)))
        try:
            state = self._lake.commit(self._bases[topic], changes, note=note)
        except Conflict:
            gone = [one for one in work if not self._lake.has(topic, one.epoch, one.files)]
            self._discard([self._written.pop(_path(one)) for one in gone])
            return False
        if state.removed > state.purged:
            self._lake.table(topic).purge([file for one in work for file in one.files])
        return True

    def _discard(self, results: Iterable[Rewritten]) -> None:
        self._lake.discard([one.new for one in results if one.new is not None])


def _path(work: Rewrite) -> str:
    return work.files[0].path
