"""Options of the sinks: valid ones are parsed, invalid ones are named."""

import os

import pytest

from topics.spark.options import DEFAULT_WINDOW_MS, PATIENT_RETRIES, BadOption, write_options


def test_created_topics_have_a_long_idempotency_window():
    assert write_options({}).creation == {"idempotency_window_ms": DEFAULT_WINDOW_MS}
    options = write_options({"idempotencywindowms": "5", "topicConfig": '{"ttl_ms": 9}', "TOPIC": "t"})
    assert (options.topic, options.creation) == ("t", {"idempotency_window_ms": 5, "ttl_ms": 9})


def test_sink_retries_patiently_by_default():
    assert write_options({}).connection.retries == PATIENT_RETRIES
    assert write_options({"retries": "0"}).connection.retries == 0


def test_spark_stream_options_are_left_to_spark():
    assert write_options({"checkpointLocation": "/tmp/x", "queryname": "q", "topic": "t"}).topic == "t"


def test_sink_takes_several_addresses_of_one_server():
    assert write_options({"url": "http://a,http://b", "topic": "t"}).connection.server == "http://a,http://b"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tpoic", "t", "did you mean 'topic'?"),
        ("topic", "a/b", "topic: "),
        ("path", "/data", "through its server"),
        ("dataFormat", "xml", "neither json nor text"),
        ("keyBy", "luck", "neither rows nor source"),
        ("createTopics", "yes", "neither true nor false"),
        ("topicConfig", "[]", "not settings"),
        ("topicConfig", '{"ttl": 5}', "no setting 'ttl'"),
        ("topicConfig", '{"ttl_ms": -5}', "not settings"),
        ("idempotencyWindowMs", "week", "whole number"),
        ("writeId", "", "1 to 64"),
    ],
)
def test_invalid_option_is_named(name: str, value: str, message: str):
    with pytest.raises(BadOption, match=message.replace("?", r"\?")):
        write_options({name: value})


def test_only_a_directory_keeps_requests_in_the_checkpoint():
    wanted = {
        "/c": "/c",
        "file:/c": "/c",
        "file:///c": "/c",
        "s3a://bucket/c": None,
        "hdfs:///c": None,
        "c": os.path.abspath("c"),
    }
    found = {path: write_options({"topic": "t", "checkpointLocation": path}).checkpoint for path in wanted}
    assert found == wanted
