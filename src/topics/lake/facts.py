"""Facts about a topic in the log of its Delta table: progress, gaps, trims and erasures.

Each fact is an application transaction (`txn`), a part of Delta that a commit changes together with its files and that
stays in the table for good, through merges, vacuums and checkpoints of any program. A fact is a name and a number:

    topics/archived/<epoch>                           the last archived seq
    topics/gap/<epoch>/<first>/<met at, ms>/<reason>  the last seq of the gap
    topics/trimmed/<epoch>                            the last seq that a trim has deleted from the topic
    topics/erased                                     the number of erasures
    topics/removed                                    the number of the last erasure that has replaced files
    topics/purged                                     the number of the last erasure whose old files were removed

So a gap is not a row, and no reader can take it for a record. Two commits that set the same fact conflict: Delta
refuses the second one unless it was made from the result of the first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import pyarrow.parquet as pq

from topics.lake.archived import ArchivedEpoch, Change, File, Gap, TopicState
from topics.lake.errors import Damaged, LakeError
from topics.lake.layout import LOG
from topics.lake.storage import Storage

ERASED, REMOVED, PURGED = "topics/erased", "topics/removed", "topics/purged"


def of_change(change: Change, base: TopicState) -> dict[str, int]:
    """Return the facts that a change sets.

    An archive change sets the number of erasures to its old value: if an erasure was committed meanwhile, the change
    may contain erased records and must conflict.
    """
    facts: dict[str, int] = {}
    if change.covered is not None:
        facts[f"topics/archived/{change.epoch}"] = change.covered[1]
        facts[ERASED] = base.erasures
    facts.update(of_gap(change.epoch, gap) for gap in change.gaps)
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


def of_gap(epoch: int, gap: Gap) -> tuple[str, int]:
    return f"topics/gap/{epoch}/{gap.first}/{gap.met_at}/{gap.reason}", gap.last


def by_epoch(facts: Facts, topic: str, files: Mapping[int, Sequence[File]]) -> dict[int, ArchivedEpoch]:
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


# --- the facts in the log of a table

Facts = Mapping[str, int]


class FactsReader:
    """Reads the facts of one table from its log. Reads only the versions that are new since the last call.

    `deltalake` returns a fact by its name; this class lists all of them.
    """

    def __init__(self, storage: Storage) -> None:
        """`storage` is the place of the table."""
        self._storage = storage
        self._version = -1
        self._facts: dict[str, int] = {}
        self.checkpoint = -1  # the version of the newest known checkpoint

    def at(self, version: int) -> Facts:
        """Return the facts as of a version of the table, which must not be older than at the last call."""
        if version > self._version:
            facts, at = self._start(version)
            for number in range(at + 1, version + 1):
                text = self._storage.read(path := f"{LOG}/{number:020d}.json")
                if text is None:
                    raise Damaged(f"{self._storage.uri(path)} is missing: bring it back from a copy of the lake")
                for action in (msgspec.json.decode(line) for line in text.splitlines() if b'"txn"' in line):
                    if "txn" in action:
                        facts[action["txn"]["appId"]] = action["txn"]["version"]
            self._facts, self._version = facts, version
        return self._facts

    def _start(self, version: int) -> tuple[dict[str, int], int]:
        """Return facts to continue from, and their version: the known ones, or those of a later checkpoint."""
        text = self._storage.read(f"{LOG}/_last_checkpoint")
        checkpoint = None if text is None else msgspec.json.decode(text)
        at = -1 if checkpoint is None else int(checkpoint["version"])
        self.checkpoint = max(self.checkpoint, at)
        if checkpoint is None or not self._version < at <= version:
            return dict(self._facts), self._version
        if "v2Checkpoint" in checkpoint:
            raise LakeError(f"{self._storage.uri(LOG)}: this version of topics cannot read checkpoints of kind v2")
        parts = int(checkpoint.get("parts") or 0)
        names = [f"{at:020d}.checkpoint.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)]
        facts: dict[str, int] = {}
        for name in names or [f"{at:020d}.checkpoint.parquet"]:
            path = f"{LOG}/{name}"
            try:
                with self._storage.open(path) as file:
                    found = pq.ParquetFile(file).read(columns=["txn.appId", "txn.version"])
            except FileNotFoundError:
                raise Damaged(f"{self._storage.uri(path)} is missing: bring it back from a copy of the lake") from None
            rows = found.column("txn").combine_chunks().drop_null()
            facts.update(zip(rows.field("appId").to_pylist(), rows.field("version").to_pylist(), strict=True))
        return facts, at
