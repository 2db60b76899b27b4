"""The histories of the engine's property tests on a real server, read by Spark and by `diff`: live, killed, copied.

All histories of a run live in one server, each under names of its own, so that one query reads them all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tests.conftest import SMALL_PARTS, ServerProcess
from tests.engine.harness import record
from tests.engine.test_histories import Append, Delete, Drop, Put, Verb, run, verbs
from tests.spark.world import Seen, by_diff, by_spark, load
from topics.client import Client
from topics.client.call import Request
from topics.errors import TopicsError
from topics.model.records import WriteRequest
from topics.model.topic import ConfigPatch
from topics.storage import backup
from topics.storage.fs import Fs

EXAMPLES = 50
LOSS = [Put("a", ConfigPatch(cap_records=2)), *(Append("a", WriteRequest([record(str(n))])) for n in range(5))]


class World:
    """A server that has played many histories, and its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.histories = 0
        self.start()

    def start(self) -> None:
        self.server = ServerProcess(self.directory, {"data_dir": self.data, **SMALL_PARTS})
        self.client = Client(self.server.url)

    def play(self, history: list[Verb]) -> None:
        self.histories += 1
        for verb in history:
            try:
                self._do(verb, f"h{self.histories}.{verb.name}")
            except TopicsError:
                pass  # a refused step changes nothing for diff and Spark

    def _do(self, verb: Verb, name: str) -> None:
        match verb:
            case Append(_, write):
                body = msgspec.json.decode(msgspec.json.encode(write), type=dict[str, msgspec.Raw])
                if write.config is not None:
                    body["config"] = msgspec.Raw(msgspec.json.encode(_lasting(write.config)))
                self.client.send(Request("POST", f"/v0/topics/{name}", msgspec.json.encode(body)))
            case Delete(_, before_seq, match):
                self.client.delete(name, before_seq=before_seq, match=None if match is None else match.wire())
            case Put(_, patch):
                self.client.put_topic(name, **_lasting(patch))
            case Drop(_, if_empty):
                self.client.drop_topic(name, if_empty=if_empty)

    def by_diff(self) -> dict[str, list[Seen]]:
        seen = {row.topic: by_diff(self.client, row.topic) for row in self.client.topics()}
        return {topic: found for topic, found in seen.items() if found}

    def heads(self) -> dict[str, int]:
        return {row.topic: row.head_seq for row in self.client.topics()}


def _lasting(patch: ConfigPatch) -> dict[str, Any]:
    """Without a TTL: here the clock is the real one, and runs on between two readers."""
    fields = msgspec.to_builtins(patch)
    fields.pop("ttl_ms", None)
    return dict(fields)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("histories"))
    made.play(LOSS)
    run(EXAMPLES, lambda history: made.play(history), history=st.lists(verbs, min_size=8, max_size=25))
    yield made
    made.client.close()
    made.server.stop()


def everything(heads: dict[str, int]) -> dict[str, str]:
    """From the first seq to the head, gaps as rows."""
    return {
        "subscribePrefix": "h",
        "startingOffsets": json.dumps(dict.fromkeys(heads, 1)),
        "endingOffsets": json.dumps({topic: head + 1 for topic, head in heads.items()}),
        "failOnDataLoss": "false",
    }


def test_spark_reads_any_history_as_diff_does(spark: SparkSession, world: World):
    expected = world.by_diff()
    assert sum(map(len, expected.values())) > 50
    assert any(seen.reason for found in expected.values() for seen in found)
    assert by_spark(load(spark, url=world.server.url, **everything(world.heads()))) == expected


@pytest.mark.torture
def test_spark_streams_any_history_in_any_batches_as_diff_does(spark: SparkSession, world: World, tmp_path: Path):
    reader = spark.readStream.format("topics").option("url", world.server.url).option("maxOffsetsPerTrigger", 40)
    for name, value in everything(world.heads()).items():
        reader = reader if name == "endingOffsets" else reader.option(name, value)
    writer = reader.load().writeStream.format("memory").queryName("histories")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(query.recentProgress) > 1
    assert by_spark(spark.table("histories")) == world.by_diff()


def test_spark_reads_a_copied_directory_as_a_server_would(spark: SparkSession, world: World, tmp_path: Path):
    copy = tmp_path / "backup"
    backup.copy(Fs(), str(world.data), str(copy))
    held = by_spark(load(spark, path=str(copy), subscribePrefix="h"))
    copied = ServerProcess(tmp_path, {"data_dir": copy})
    with Client(copied.url) as client:
        heads = {row.topic: row.head_seq for row in client.topics()}
        expected = {topic: by_diff(client, topic) for topic in heads}
    copied.stop()
    found = by_spark(load(spark, path=str(copy), **everything(heads)))
    assert found == {topic: seen for topic, seen in expected.items() if seen}
    records = {topic: [one for one in seen if one.reason is None] for topic, seen in found.items()}
    assert {topic: seen for topic, seen in held.items() if seen} == {t: seen for t, seen in records.items() if seen}


def upto(rows: list[Seen], head: int) -> list[Seen]:
    """Return the rows up to `head`, gaps cut there: after a kill an ephemeral topic goes on above its ceiling."""
    cut = [seen if seen.gap_to is None else seen._replace(gap_to=min(seen.gap_to, head)) for seen in rows]
    return [seen for seen in cut if seen.seq <= head]


def test_spark_reads_the_directory_of_a_killed_server_as_the_next_start(spark: SparkSession, world: World):
    heads = world.heads()
    world.client.close()
    world.server.kill()
    found = by_spark(load(spark, path=str(world.data), **everything(heads)))
    world.start()
    after = {name: upto(rows, heads[name]) for name, rows in world.by_diff().items()}
    assert found == {name: rows for name, rows in after.items() if rows}
