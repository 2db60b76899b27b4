"""Windows of event time, and declarations of rollups, without Spark."""

import msgspec
import pytest

from topics.spark.pipelines.windows import (
    NEVER,
    Declaration,
    Open,
    Seen,
    duration_ms,
    turn,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("10 minutes", 600_000), ("1 hour", 3_600_000), ("1h 30m", 5_400_000), ("500 ms", 500), ("0 seconds", 0)],
)
def test_durations_are_parsed_in_common_forms(text: str, ms: int):
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "soon", "10", "1 month", "1 hour later"])
def test_invalid_durations_are_refused(text: str):
    with pytest.raises(ValueError, match="not a duration"):
        duration_ms(text)


def test_window_closes_when_the_watermark_reaches_its_end():
    seen = [Seen(0, 10, 1, 3), Seen(10, 20, 4, 1)]
    before = turn([], NEVER, seen, latest_ms=14, delay_ms=5)
    assert (before.watermark_ms, before.closing) == (9, [])
    assert before.open == [Open(0, 10, 1), Open(10, 20, 4)]

    after = turn(before.open, before.watermark_ms, [Seen(10, 20, 9, 1)], latest_ms=15, delay_ms=5)
    assert (after.watermark_ms, after.closing, after.open) == (10, [Open(0, 10, 1)], [Open(10, 20, 4)])


def test_record_of_a_closed_window_is_late():
    found = turn([], 10, [Seen(0, 10, 5, 2)], latest_ms=8, delay_ms=0)
    assert (found.late, found.closing, found.open, found.watermark_ms) == (2, [], [], 10)


def test_range_without_times_changes_nothing():
    found = turn([Open(0, 10, 1)], 5, [], latest_ms=None, delay_ms=0)
    assert (found.watermark_ms, found.open, found.closing) == (5, [Open(0, 10, 1)], [])


def declare(**fields: object) -> Declaration:
    return msgspec.convert({"topic": "orders", "into": "hourly", "window": "1 hour"} | fields, Declaration)


def test_declaration_becomes_one_statement():
    declared = declare(by=["tag"], select=["count(*) AS n"], where="tag IS NOT NULL")
    assert declared.statement == (
        "SELECT window, tag, count(*) AS n FROM records WHERE tag IS NOT NULL GROUP BY ALL"
    )  # fmt: skip
    assert declared.digest == declare(by=["tag"], select=["count(*) AS n"], where="tag IS NOT NULL").digest
    assert declared.digest != declare(by=["node"]).digest


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"table": "/x"}, "choose one output"),
        ({"slide": "2 hours"}, "slide"),
        ({"window": "1 month"}, "not a duration"),
        ({"into": "orders"}, "own source topic"),
        ({"sql": "SELECT 1", "by": ["tag"]}, "sql replaces"),
        ({"windw": "1 hour"}, "unknown field"),
        ({"into": "no topic"}, "not a topic name"),
    ],
)
def test_invalid_declarations_are_refused_with_a_reason(fields: dict[str, object], message: str):
    with pytest.raises(msgspec.ValidationError, match=message):
        declare(**fields)


def test_aggregates_that_can_be_merged_are_computed_in_parts():
    declared = declare(by=["tag AS t"], select=["count(*) AS n", "max(concat(a, ')')) m", "AVG(x)"], where="x > 0")
    partial = declared.partial(["struct<>", "string", "bigint", "string", "double"])
    assert partial is not None
    assert partial.statement == (
        "SELECT window, tag AS t, count(*), max(concat(a, ')')), sum(CAST((x) AS DOUBLE)), count(x) "
        "FROM records WHERE x > 0 GROUP BY ALL"
    )
    assert partial.groups == ["window", "g0"]
    assert partial.merges == {"p0": "sum", "p1": "max", "p2": "sum", "p3": "sum"}
    assert partial.finals == ["p0", "p1", "try_divide(p2, p3)"]


@pytest.mark.parametrize(
    "select",
    [
        "count(DISTINCT a) AS n", "count( distinct a)", "max(a) - min(a) AS spread", "count(*) FILTER (WHERE a)",
        "collect_list(a) AS all", "count(*) AS n, sum(a) AS s", "1 AS one", "avg(price) AS mean",
    ],
)  # fmt: skip
def test_other_aggregates_need_all_records(select: str):
    assert declare(select=[select]).partial(["struct<>", "decimal(14,4)"]) is None
    assert declare(sql="SELECT window, count(*) FROM records GROUP BY ALL").partial(["struct<>", "bigint"]) is None


def test_digest_of_a_declaration_is_a_number_of_a_table():
    assert 0 <= Declaration(topic="t", window="1 minute", table="/x").digest < 1 << 63
