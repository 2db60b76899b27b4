"""Erase records from the tables of a lake: find the files that have some, write them again, and replace them.

Tasks read and write the files; this process plans and commits. A file never changes, so it is read and written once,
however often other processes commit meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from topics.lake.archived import Change, TopicState
from topics.lake.errors import Conflict, Damaged
from topics.lake.lake import Lake
from topics.lake.rewrite import Erasure, Rewrite, Rewritten, Run, here, rewrite


class LakeErasure:
    """Erases from these topics of a lake what `erasure_of(topic, epoch)` says."""

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
        results: dict[str, Rewritten] = {}
        found = self._process(self.topics, results, dry_run=True)
        return {topic: [results[_path(one)].removed for one in work] for topic, work in found.items()}

    def commit(self, *, note: Mapping[str, Any] | None = None) -> dict[str, list[int]]:
        """Erase, with one commit per topic, and return how many records each replaced file has lost, by topic.

        Every topic is marked as erased even if no record was found: an archive run that read its records before they
        were erased from the topic, and has not committed them yet, must read again. After the commit, the replaced
        files are removed, and so are the versions that had them.
        """
        done: dict[str, list[int]] = {}
        while left := [topic for topic in self.topics if topic not in done]:
            found = self._process(left, self._written)
            for topic in left:
                if self._commit_topic(topic, found[topic], note):
                    done[topic] = [self._written.pop(_path(one)).removed for one in found[topic]]
        return done

    def _process(
        self, topics: Iterable[str], results: dict[str, Rewritten], *, dry_run: bool = False
    ) -> dict[str, list[Rewrite]]:
        """Let tasks rewrite the files that may have records to erase, unless `results` has them already.

        Return the files that have some, as of the newest version of each table.
        """
        while True:
            self._bases |= {topic: self._lake.table(topic).state() for topic in topics}
            found = {topic: list(self._candidates(topic)) for topic in topics}
            work = [one for every in found.values() for one in every if _path(one) not in results]
            results |= self._tasks(work, dry_run=dry_run)
            if all(_path(one) in results for one in work):  # else a file was replaced meanwhile
                return {topic: [one for one in work if results[_path(one)].removed] for topic, work in found.items()}

    def _candidates(self, topic: str) -> Iterator[Rewrite]:
        """Yield the files whose statistics do not exclude that they have records to erase."""
        typed = self._lake.table(topic).typed()
        for epoch, archived in self._bases[topic].epochs.items():
            erasure = self._erasure_of(topic, epoch)
            for file in archived.files:
                if (part := erasure.within(file)) is not None:
                    yield Rewrite(topic=topic, epoch=epoch, files=(file,), typed=typed, erasure=part)

    def _tasks(self, work: list[Rewrite], *, dry_run: bool) -> dict[str, Rewritten]:
        """Return the results by path, without files that were replaced meanwhile. Raise `Damaged` for other damage."""
        task = partial(rewrite, lake=self._lake.path, dry_run=dry_run)
        results = self._run(work, task, result=Rewritten, weight=lambda one: one.size_bytes)
        found = {_path(one): result for one, result in zip(work, results, strict=True) if result.damage is None}
        for one, result in zip(work, results, strict=True):
            if result.damage is not None and self._lake.has(one.topic, one.epoch, one.files):
                self._discard([*self._written.values(), *found.values()])
                raise Damaged(result.damage)
        return found

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
