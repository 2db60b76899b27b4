"""The option `consumer`: a stream shows its progress as a named consumer. Needs no Spark session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.conftest import ServerProcess
from tests.contract.api import Api
from topics.spark.options import BadOption, read_options
from topics.spark.source.readers import TopicsReader, TopicsStreamReader


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    server = ServerProcess(tmp_path, {})
    client = Api(server.url)
    yield client
    client.close()
    server.stop()


def reader(api: Api, **more: str) -> TopicsStreamReader:
    given = {"url": str(api.http.base_url), "subscribe": "orders", "startingOffsets": "earliest", "consumer": "etl"}
    return TopicsStreamReader(read_options(given | more))


def test_finished_batch_moves_the_consumer(api: Api):
    api.write("orders", 1, 2, 3)
    stream = reader(api)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    api.refused(404, "consumer_not_found", "GET", "/v0/topics/orders/consumers/etl")
    stream.commit(end)
    assert api.get("/v0/topics/orders/consumers/etl")["seq"] == 3
    api.write("orders", 4)
    found = api.get("/v0/topics/orders/consumers/etl")
    assert (found["seq"], found["lag_records"]) == (3, 1)
    stream.stop()


def test_topic_that_was_created_again_does_not_stop_the_stream(api: Api):
    api.write("orders", 1, 2, 3)
    stream = reader(api)
    end = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    api.drop("orders")
    stream.commit(end)
    stream.stop()
    api.write("orders", 1)
    stream = reader(api)
    stream.commit(end)
    api.refused(404, "consumer_not_found", "GET", "/v0/topics/orders/consumers/etl")
    stream.stop()


@pytest.mark.torture
def test_batch_read_and_invalid_name_refuse_the_option(api: Api):
    with pytest.raises(BadOption, match="only streams"):
        TopicsReader(read_options({"subscribe": "orders", "consumer": "etl"}))
    with pytest.raises(BadOption, match="is not a consumer name"):
        read_options({"subscribe": "orders", "consumer": "a b"})
