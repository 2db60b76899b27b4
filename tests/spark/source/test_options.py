"""Options: every one is checked, and none is passed over."""

from typing import Any

import pytest

from topics.model.records import TagMatch
from topics.spark.options import BadOption, ConnectionOptions, Offsets, read_options


def options(**given: str) -> Any:
    return read_options({"subscribe": "orders"} | given)


def test_options_have_defaults():
    found = options()
    assert found.topics == ("orders",)
    assert found.connection == ConnectionOptions(server="http://127.0.0.1:4000")
    assert found.fail_on_data_loss
    assert (found.starting, found.ending, found.min_partitions) == (None, None, 1)


def test_case_does_not_matter():
    assert not read_options({"SUBSCRIBE": "a", "failondataloss": "FALSE"}).fail_on_data_loss


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("failOnDataLos", "failOnDataLoss"),
        ("subscribepatern", "subscribePattern"),
        ("startingOffset", "startingOffsets"),
    ],
)
def test_unknown_option_is_an_error_with_the_nearest_name(name: str, near: str):
    with pytest.raises(BadOption, match=f"did you mean '{near}'"):
        options(**{name: "true"})


def test_topics_are_a_list_a_prefix_or_a_pattern():
    assert options(subscribe="a, b,a").topics == ("a", "b")
    by_prefix = read_options({"subscribePrefix": "eu."})
    assert [by_prefix.wants(name) for name in ("eu.orders", "us.orders")] == [True, False]
    by_pattern = read_options({"subscribePattern": "o.*s"})
    assert [by_pattern.wants(name) for name in ("orders", "orders2")] == [True, False]


def test_offsets_are_words_or_a_map():
    assert options(startingOffsets="Latest").starting == Offsets("latest")
    assert options(startingOffsets='{"orders": 7}').starting.of("orders") == 7
    assert options(startingOffsets='{"orders": -2}').starting.of("orders") == "earliest"
    assert options(endingOffsets='{"orders": -1}').ending.of("orders") == "latest"
    assert options(endingOffsets='{"orders": "latest"}').ending.of("orders") == "latest"


def test_offset_may_name_its_epoch():
    found = options(startingOffsets='{"orders": {"epoch": 3, "seq": 7}}').starting
    assert (found.of("orders"), found.epoch_of("orders")) == (7, 3)
    assert options(startingOffsets='{"orders": 7}').starting.epoch_of("orders") is None


def test_times_are_milliseconds_or_iso():
    assert options(startingTimestamp="1748450001000").starting_ts == 1748450001000
    assert options(startingTimestamp="2025-05-28T16:33:21Z").starting_ts == 1748450001000
    assert options(endingTimestamp="2025-05-28T18:33:21.0001+02:00").ending_ts == 1748450001001


def test_tag_may_end_with_a_star():
    assert options(tag="x").tag == TagMatch("Eq", "x")
    assert options(tag="x:*").tag == TagMatch("Glob", "x:")


def test_where_is_a_filter_and_points_at_its_errors():
    found = options(tag="x", where="total > 5").match
    assert found == TagMatch("Where", '["And", [["tag", "Eq", "x"], ["Where", "total > 5"]]]')
    with pytest.raises(BadOption, match=r"where\[1\]: character 8"):
        options(where="total >")


def test_server_may_have_several_addresses():
    assert options(url="http://a:1, http://b:2/").connection.server == "http://a:1,http://b:2"
    with pytest.raises(BadOption, match="'b:2' is not the URL"):
        options(url="http://a:1,b:2")


def test_directory_is_a_path_or_a_file_url():
    assert options(path="file:///var/data").path == options(path="file:/var/data/").path == "/var/data"
    assert options(path="/a/x:y").path == "/a/x:y"
    with pytest.raises(BadOption, match="not a directory that executors can open"):
        options(path="s3://bucket/data")


def test_key_in_a_file_is_read_at_its_use(tmp_path: Any):
    key = tmp_path / "key"
    found = options(tokenFile=str(key)).connection
    with pytest.raises(BadOption, match="cannot be read"):
        found.read_token()
    key.write_text("secret\n")
    assert found.read_token() == "secret"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"subscribe": ""}, "at least one topic"),
        ({"subscribe": "no/slash"}, "is not a topic name"),
        ({"subscribePrefix": "a"}, "subscribe and subscribePrefix"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"startingOffsets": "first"}, "neither"),
        ({"startingOffsets": '{"orders": 0}'}, "neither"),
        ({"startingOffsets": '{"orders": true}'}, "neither"),
        ({"startingOffsets": "[1]"}, "neither"),
        ({"startingOffsets": '{"orders": {"epoch": "x", "seq": 1}}'}, "neither"),
        ({"startingOffsets": '{"orders": {"epoch": 1, "seq": "latest"}}'}, "neither"),
        ({"startingOffsets": '{"other": 1}'}, "'other' is not one of"),
        ({"startingOffsets": '{"http://c": {"orders": 1}}'}, "neither"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "give one of them"),
        ({"endingOffsets": "earliest"}, "cannot end there"),
        ({"startingTimestamp": "yesterday"}, "neither"),
        ({"minPartitions": "0"}, "at least 1"),
        ({"minPartitions": "many"}, "at least 1"),
        ({"maxPartitionBytes": "-1"}, "at least 1"),
        ({"retries": "x"}, "at least 0"),
        ({"failOnDataLoss": "no"}, "neither true nor false"),
        ({"url": "ftp://x"}, "is not the URL"),
        ({"url": ","}, "is not the URL of a server"),
        ({"path": "/data", "url": "http://a"}, "give one of them"),
        ({"token": "a", "tokenFile": "b"}, "give one of them"),
        ({"coldPath": "/cold"}, "only a data directory"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], shown: str):
    with pytest.raises(BadOption, match=shown):
        options(**given)


def test_exactly_one_selection_of_topics_is_required():
    with pytest.raises(BadOption, match="given: nothing"):
        read_options({})
