"""What the target of a backup holds, and whether a newer state of the source may replace it."""

from __future__ import annotations

from typing import NoReturn

from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage import snapshot_files
from topics.storage.datadir import DataDir
from topics.storage.fs import read_whole
from topics.storage.log import walfile
from topics.storage.log.entry import APPEND


class CopyError(Exception):
    """The copy failed and the target is unchanged. The text gives the reason and the next step."""


class HeldBackup:
    """The state of a target before a copy; empty for a target without a complete backup."""

    def __init__(self, target: DataDir) -> None:
        self.snapshot = newest_snapshot(target, []) if target.declared else snap.empty()
        self._topics = {topic.topic_id: topic for topic in self.snapshot.topics}
        self._heads = {topic_id: topic.head for topic_id, topic in self._topics.items()}
        for number in target.wal_numbers() if target.declared else ():
            for item in walfile.scan(read_whole(target.fs, target.wal_path(number))):
                if isinstance(item, walfile.FoundFrame) and item.frame.head.kind == APPEND:
                    _, topic_id, first, count = item.frame.head
                    self._heads[topic_id] = max(self._heads.get(topic_id, 0), first + count - 1)
        self.footers = {ref.footer for topic in self._topics.values() for ref in topic.segments}
        self.tails = {topic.tail.tails for topic in self._topics.values() if topic.tail is not None}

    def may_have(self, topic_id: int, first: int, last: int) -> bool:
        """Return whether the target may have a record of this range."""
        topic = self._topics.get(topic_id)
        earliest = 1 if topic is None else topic.earliest
        return max(first, earliest) <= min(last, self._heads.get(topic_id, 0))

    def lost_since(self, topic: snap.TopicSnapshot) -> list[tuple[int, int]]:
        """Return the ranges that the source has lost to damage and that the target may have."""
        known = self._topics.get(topic.topic_id)
        before = [] if known is None else [run for run in known.losses if run[2] == "corrupt"]
        return [
            (first, last)
            for first, last, reason in topic.losses
            if reason == "corrupt"
            and self.may_have(topic.topic_id, first, last)
            and not any(low <= first and last <= high for low, high, _ in before)
        ]

    def is_earlier_than(self, snapshot: snap.Snapshot, target: DataDir) -> bool:
        """Return whether the target can be an earlier state of a source with this snapshot."""
        held, number = self.snapshot.wal_number, snapshot.wal_number
        if held > number or (held < number and any(other >= number for other in target.wal_numbers())):
            return False
        now = {topic.topic_id: topic for topic in snapshot.topics}
        for topic in self.snapshot.topics:
            same = now.get(topic.topic_id)
            if same is not None and ((same.name, same.epoch) != (topic.name, topic.epoch) or same.head < topic.head):
                return False
            refs = {} if same is None else {ref.first: ref.footer for ref in same.segments}
            if any(refs.get(ref.first, ref.footer) != ref.footer for ref in topic.segments):
                return False
        return snapshot.last_epoch >= self.snapshot.last_epoch


def refuse_history(source: DataDir, target: DataDir) -> NoReturn:
    raise CopyError(
        f"{target.root} is no earlier backup of {source.root}: it is one of another directory, "
        "or a server was started on it since; choose another target"
    )


def refuse_damage(source: DataDir, target: DataDir, problems: list[str]) -> NoReturn:
    first = problems[0].replace("; ", ", ")  # the text after a semicolon is the next step
    raise CopyError(
        f"{target.root} is unchanged: it has records that are damaged or missing in {source.root} "
        f"({len(problems)} places, the first: {first}); keep it, and back up to a new directory"
    )


def newest_number(datadir: DataDir) -> int:
    """Return the number of the newest snapshot, 0 if there is none."""
    return max(datadir.snapshot_numbers(), default=0) if datadir.fs.exists(datadir.snapshots_dir) else 0


def newest_snapshot(datadir: DataDir, problems: list[str]) -> snap.Snapshot:
    """Return the newest readable snapshot. Raise `CopyError` if there was one and none can be read."""
    try:
        return snapshot_files.newest(datadir, problems)
    except Corrupt as error:
        what = error.what.partition("; ")[0]
        raise CopyError(f"{error.path}: {what}; run `topics verify {datadir.root}`") from error
