"""Random histories of a topic and its lake, read together: each record once, and no silent gap.

The steps are everything that may happen to a record: deletes, caps, archives that trim, a topic dropped and recreated,
and lakes that are set back to an older copy or lose their last version. The reference model knows the live records. A
written record that was not deleted on request must be read unchanged or lie in a gap; a record that the topic or the
lake has must be read. There is no session: the tasks of pipeline and source run in this process.

    python -m tests.spark.source.test_healed_histories 1000 2000    # these seeds, without pytest
"""

from __future__ import annotations

import copy
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.conftest import SMALL_PARTS, ServerProcess
from tests.reference.oracle import Oracle
from topics.client import Client
from topics.clock import SystemClock
from topics.lake import Lake
from topics.lake.layout import topic_folder
from topics.model.records import NewRecord, TagMatch, WriteRequest
from topics.model.topic import ConfigPatch
from topics.spark.options import read_options
from topics.spark.pipelines.archive.driver import archive
from topics.spark.pipelines.run.job import Failed
from topics.spark.source.readers import TopicsReader, TopicsStreamReader

STEPS = 14
WEIGHTS = {
    "write": 5, "delete": 1, "delete_tag": 1, "delete_some": 1, "evict": 2, "archive": 2, "trim": 3,
    "drop": 1, "keep_copy": 2, "set_back": 2, "lose_version": 3,
}  # fmt: skip

Row = tuple[int, int, bytes | str]  # first and last seq; the data of a record, or the reason of a gap
Archived = dict[int, set[int]]  # by epoch: the seqs that are in a lake


class History:
    """One topic, its lake, and a model of both."""

    def __init__(self, client: Client, session: Any, topic: str, directory: Path, seed: int) -> None:
        self.client, self.session, self.topic, self.seed = client, session, topic, seed
        self.lake, self.copy = directory / "lake", directory / "copy"
        self.chance = random.Random(seed)
        self.model = Oracle(SystemClock())
        self.written: dict[int, dict[int, bytes]] = {}  # by epoch and seq
        self.asked: dict[int, set[int]] = {}  # by epoch: the seqs that were deleted on request
        self.archived: Archived = {}
        self.kept: Archived = {}
        self.done: list[str] = []
        Lake(str(self.lake)).create()

    def play(self) -> None:
        for _ in range(STEPS):
            [name] = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
            if name == "write" or self.topic in self.model.topics or name in ("keep_copy", "set_back"):
                self.done.append(name)
                getattr(self, name)()
            if name in ("set_back", "lose_version"):
                self.check()  # before an archive or a new epoch hides it
        self.check()

    # --- steps

    @property
    def epoch(self) -> int:
        return self.client.topic(self.topic).epoch

    @property
    def head(self) -> int:
        return self.model.topic(self.topic).head

    @property
    def live(self) -> set[int]:
        return {fact.seq for fact in self.model.topic(self.topic).live}

    def write(self) -> None:
        count = self.chance.randint(1, 30)
        records = [(f"{self.seed}.{self.chance.random()}", self.chance.choice("abc")) for _ in range(count)]
        wire = [NewRecord(data=msgspec.Raw(msgspec.json.encode(text)), tag=tag) for text, tag in records]
        landed = self.model.append(self.topic, WriteRequest(records=wire))
        self.client.append(self.topic, [{"data": text, "tag": tag} for text, tag in records])
        written = self.written.setdefault(self.epoch, {})
        written |= {landed.first + at: msgspec.json.encode(text) for at, (text, _) in enumerate(records)}

    def delete(self) -> None:
        self._delete(self.chance.randint(1, self.head + 1), None)

    def delete_tag(self) -> None:
        self._delete(None, self.chance.choice("abc"))

    def _delete(self, before: int | None, tag: str | None) -> None:
        live = self.live
        match = None if tag is None else TagMatch("Eq", tag)
        self.model.delete(self.topic, before_seq=before, match=match)
        self.client.delete(self.topic, before_seq=before, match=tag)
        self.asked.setdefault(self.epoch, set()).update(live - self.live)

    def delete_some(self) -> None:
        seqs = [seq for seq in sorted(self.live) if self.chance.random() < 0.3]
        for seq in seqs:
            self.model.topic(self.topic).facts[seq - 1].fate = "deleted"
        self.client.delete(self.topic, seqs=seqs)
        self.asked.setdefault(self.epoch, set()).update(seqs)

    def evict(self) -> None:
        for cap in (self.chance.randint(1, 40), 0):
            self.model.put(self.topic, ConfigPatch(cap_records=cap))
            self.client.put_topic(self.topic, cap_records=cap)

    def archive(self, *, trim: bool = False) -> None:
        def run(**options: Any) -> None:
            archive(
                url=self.client.url, lake=str(self.lake), topics=[self.topic], trim=trim, spark=self.session,
                merge_files=self.chance.choice((0, 2)), **options,
            )  # fmt: skip

        known = Lake(str(self.lake)).snapshot().archived(self.topic, self.epoch)
        start = 0 if known is None else known.archived_to
        live = self.live
        try:
            run()
        except Failed as error:
            if "it is another lake, an older copy" not in str(error):
                raise
            run(new_lake=True)
        self.archived.setdefault(self.epoch, set()).update(seq for seq in live if seq > start)
        if trim:
            self.model.delete(self.topic, before_seq=self.head + 1, match=None)
        self.model.archive(self.topic, self.head)

    def trim(self) -> None:
        self.archive(trim=True)

    def drop(self) -> None:
        self.model.drop(self.topic)
        self.client.drop_topic(self.topic)

    def keep_copy(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.lake, self.copy)
        self.kept = copy.deepcopy(self.archived)

    def set_back(self) -> None:
        if self.copy.exists():
            shutil.rmtree(self.lake)
            shutil.copytree(self.copy, self.lake)
            self.archived = copy.deepcopy(self.kept)

    def lose_version(self) -> None:
        """One that notes a trim: without any other that is the last, an archive is refused or a file missing."""
        commits = sorted((self.lake / topic_folder(self.topic) / "_delta_log").glob("*.json"))
        if commits and b"topics/trimmed" in commits[-1].read_bytes():
            commits[-1].unlink()

    # --- reads

    def check(self) -> None:
        if self.topic in self.model.topics:
            epoch, live = self.epoch, self.live
        elif self.archived:
            epoch, live = max(self.archived), set()
        else:
            return
        rows = self._by_spark()
        self._check_rows(rows, epoch, live)
        if rows:
            assert self._values_read(self._by_stream(), epoch) == self._values_read(rows, epoch)

    def _check_rows(self, rows: list[Row], epoch: int, live: set[int]) -> None:
        records = {seq: data for seq, _, data in rows if isinstance(data, bytes)}
        lost = [seq for first, last, data in rows if isinstance(data, str) for seq in range(first, last + 1)]
        assert [seq for seq, _, _ in rows] == sorted(seq for seq, _, _ in rows)
        assert len(records) + len(lost) == len({*records, *lost}), "no seq comes twice"
        written, asked = self.written.get(epoch, {}), self.asked.get(epoch, set())
        archived = self.archived.get(epoch, set())
        assert records == {seq: written[seq] for seq in records}
        assert live | (archived - asked) <= records.keys() <= live | archived
        if live or self.topic in self.model.topics:
            assert written.keys() - records.keys() - asked <= set(lost), "silence"

    def _values_read(self, rows: list[Row], epoch: int) -> dict[int, bytes]:
        """Return the result for each seq, without those that were deleted on request.

        A server reports deleted seqs as lost as well to a reader that starts before an evicted seq, which then finds
        them in the lake or in a gap. It does not report them to a reader that starts later.
        """
        reported = {
            seq: b"lost" if isinstance(data, str) else data for low, high, data in rows for seq in range(low, high + 1)
        }
        return {seq: data for seq, data in reported.items() if seq not in self.asked.get(epoch, set())}

    def _options(self) -> dict[str, str]:
        start = f'{{"{self.topic}":1}}'
        return {
            "url": self.client.url, "subscribe": self.topic, "lake": str(self.lake), "startingOffsets": start,
            "failOnDataLoss": "false",
        }  # fmt: skip

    def _by_spark(self) -> list[Row]:
        reader = TopicsReader(read_options(self._options()))
        return [row for part in reader.partitions() for batch in reader.read(part) for row in _cells(batch)]

    def _by_stream(self) -> list[Row]:
        """In batches of a few seqs."""
        reader = TopicsStreamReader(read_options(self._options()))
        rows: list[Row] = []
        try:
            at = reader.initialOffset()
            reader.prepareForTriggerAvailableNow()
            while (end := reader.latestOffset(at, ReadMaxRows(self.chance.randint(5, 60)))) != at:
                parts = reader.partitions(at, end)
                rows += [row for part in parts for batch in reader.read(part) for row in _cells(batch)]
                at = end
        finally:
            reader.stop()
        return rows


def _cells(batch: Any) -> Iterator[Row]:
    for row in batch.to_pylist():
        if row["gap_to"] is None:
            yield row["seq"], row["seq"], row["data"].encode()
        else:
            yield row["seq"], row["gap_to"], row["reason"]


def play(client: Client, session: Any, seed: int, directory: Path) -> None:
    history = History(client, session, f"history{seed}", directory, seed)
    try:
        history.play()
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(history.done)}")
        raise


@pytest.mark.parametrize(
    "seeds", [range(4), pytest.param(range(4, 40), marks=pytest.mark.torture)], ids=["few", "many"]
)
def test_any_history_of_topic_and_lake_is_read_once_without_silent_gaps(
    client: Client, here: Any, tmp_path: Path, seeds: range
):
    for seed in seeds:
        play(client, here, seed, tmp_path / str(seed))


@contextmanager
def _world() -> Iterator[tuple[Client, Path]]:
    with tempfile.TemporaryDirectory() as name:
        server = ServerProcess(Path(name), {"data_dir": Path(name) / "data", **SMALL_PARTS})
        try:
            with Client(server.url) as client:
                yield client, Path(name)
        finally:
            server.stop()


if __name__ == "__main__":
    with _world() as (running, extent):
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            play(running, False, number, extent / str(number))
            shutil.rmtree(extent / str(number))
            if number % 100 == 99:
                print(number + 1, flush=True)
