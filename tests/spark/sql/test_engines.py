"""One statement, three answers: DuckDB, Spark, and Python over the records that the server returns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from tests.conftest import ServerProcess
from tests.spark.lakes import archive
from topics.client import Client
from topics.spark.sql.on_duckdb import DuckTables
from topics.spark.sql.show import plain
from topics.spark.sql.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]
ORDERS, U, V = "engines:orders-eu", "engines.users", "engines.visits"  # orders, users, visits


class Row(NamedTuple):
    """A record as Python sees it."""

    seq: int
    ts: str  # as SQL writes it
    tag: str | None
    data: Any
    text: str
    meta: Any


class World(NamedTuple):
    """The records of each topic, and how the tables are reached."""

    rows: dict[str, list[Row]]
    options: dict[str, str]


def _rows(client: Client, topic: str) -> list[Row]:
    found = []
    for one in client.read(topic, include_tags=True):
        ts = plain_ts(one.ts)
        meta = msgspec.json.decode(bytes(one.meta)) if isinstance(one.meta, bytes | memoryview) or one.meta else None
        found.append(Row(one.seq, ts, one.tag, msgspec.json.decode(bytes(one.data)), bytes(one.data).decode(), meta))
    return found


def plain_ts(ts_ms: int) -> str:
    return f"{datetime.fromtimestamp(ts_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"


@pytest.fixture(scope="session")  # the tests of this file run in two groups, on one server
def world(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A live topic with records of many shapes, a small one to join, and one of which the lake has the beginning.

    Seqs 6 to 8 of the last are lost.
    """
    lake = tmp_path_factory.mktemp("lake")
    skus = ("V60", "KETTLE", "FILTERS", "V60", "MÜHLE")
    with Client(server.url) as client:
        for part in range(4):
            client.append(
                ORDERS,
                [
                    {
                        "data": {
                            "id": part * 10 + at,
                            "sku": skus[at % 5],
                            "qty": at % 4 + 1,
                            "price": 1.5 * at,
                            "user": at % 3,
                            "paid": at % 2 == 0,
                            "by": {"name": "Ann" if at % 3 else "Bo", "age": 20 + at},
                            "lines": [{"n": at}, {"n": at + 1}],
                            **({"note": f"n{at}"} if at == 7 else {}),
                        },
                        "tag": ("web", "shop", None)[at % 3],
                        "meta": {"trace": f"t{at}", "hop": at},
                    }
                    for at in range(10)
                ],
            )
        client.append(ORDERS, [{"data": "no object"}, {"data": None}, {"data": {"sku": 7, "qty": "many"}}])
        client.append(U, [{"data": {"id": at, "name": name}} for at, name in enumerate(("Ann", "Bo", "Cy", "Di"))])
        client.append(V, [{"data": {"page": f"/{at % 3}", "user": at % 4}, "tag": "web"} for at in range(5)])
        archive(client, lake, V)
        client.append(V, [{"data": {"page": f"/{at % 3}", "user": at % 4}} for at in range(5, 12)])
        client.put_topic(V, cap_records=4)  # seqs 9 to 12 stay
        rows = {topic: _rows(client, topic) for topic in (ORDERS, U)}
    rows[V] = [
        Row(seq, "", "web" if seq <= 5 else None, {"page": f"/{(seq - 1) % 3}", "user": (seq - 1) % 4}, "", None)
        for seq in [*range(1, 6), *range(9, 13)]
    ]
    return World(rows, {"url": server.url, "lake": str(lake)})


@pytest.fixture(scope="session")
def duckdb(world: World) -> Iterator[Tables]:
    with closing(DuckTables(world.options, gaps=True)) as tables:
        yield tables


@pytest.fixture(scope="module")
def on_spark(world: World, spark: SparkSession) -> Tables:
    from topics.spark.sql.on_spark import SparkTables

    return SparkTables(spark, world.options, gaps=True)


def objects(world: World) -> list[Row]:
    """The orders that have a price."""
    return [row for row in world.rows[ORDERS] if isinstance(row.data, dict) and "price" in row.data]


def grouped(rows: list[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    found = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


Expected = Callable[[World], Rows]
CASES: dict[str, Expected] = {}


def case(sql: str, expected: Expected) -> None:
    CASES[sql] = expected


# --- columns of the record
case(f"select count(*) from {ORDERS}", lambda w: [(43,)])
case(f"select min(seq), max(seq), sum(seq) from {ORDERS}", lambda w: [(1, 43, 946)])
case(
    f"select seq, tag from {ORDERS} where seq between 3 and 5 order by seq",
    lambda w: [(r.seq, r.tag) for r in w.rows[ORDERS][2:5]],
)
case(f"select distinct tag from {ORDERS}", lambda w: [("web",), ("shop",), (None,)])
case(
    f"select tag, count(*) from {ORDERS} group by tag order by tag",
    lambda w: sorted(Counter(r.tag for r in w.rows[ORDERS]).items(), key=lambda p: (p[0] is not None, p[0])),
)
case(f"select tag from {ORDERS} where seq < 4 order by tag desc", lambda w: [("web",), ("shop",), (None,)])
case(
    f"select seq from {ORDERS} where tag is null order by seq",
    lambda w: [(r.seq,) for r in w.rows[ORDERS] if r.tag is None],
)
case(
    f"select seq from {ORDERS} where tag in ('web', 'x') and seq > 30 order by seq",
    lambda w: [(r.seq,) for r in w.rows[ORDERS] if r.tag == "web" and r.seq > 30],
)
case(f"select seq from {ORDERS} where tag like 's%' order by seq limit 3", lambda w: [(2,), (5,), (8,)])
case(f"select topic, kind, node from {ORDERS} where seq = 1", lambda w: [(ORDERS, "record", None)])
case(
    f"select data from {ORDERS} where seq in (1, 41, 42) order by seq",
    lambda w: [(w.rows[ORDERS][at].text,) for at in (0, 40, 41)],
)
case(f"select meta from {ORDERS} where seq in (1, 41) order by seq", lambda w: [('{"trace":"t0","hop":0}',), (None,)])
case(
    f"select count(*) from {ORDERS} where data like '%KETTLE%'",
    lambda w: [(sum("KETTLE" in r.text for r in w.rows[ORDERS]),)],
)
case(f"select length(data) from {ORDERS} where seq = 1", lambda w: [(len(w.rows[ORDERS][0].text),)])
case(
    f"select upper(tag), lower('ABC'), concat(tag, '-', seq) from {ORDERS} where seq = 1",
    lambda w: [("WEB", "abc", "web-1")],
)
case(f"select seq from {ORDERS} order by seq desc limit 2 offset 1", lambda w: [(42,), (41,)])
case(
    f"select case when seq < 10 then 'low' else 'high' end as k, count(*) from {ORDERS} group by 1 order by 1",
    lambda w: [("high", 34), ("low", 9)],
)
case(
    f"select coalesce(tag, 'none') as t, count(*) from {ORDERS} group by 1 order by 1",
    lambda w: sorted(Counter(r.tag or "none" for r in w.rows[ORDERS]).items()),
)
case(f"select count(*) from {ORDERS} a cross join {U} b".replace(f", {U}", f" cross join {U}"), lambda w: [(43 * 4,)])

# --- fields of data and meta
case(
    f"select data.sku, data.qty from {ORDERS} where seq <= 5 order by seq",
    lambda w: [(r.data["sku"], str(r.data["qty"])) for r in w.rows[ORDERS][:5]],
)
case(f"select data.price from {ORDERS} where seq <= 3 order by seq", lambda w: [(0.0,), (1.5,), (3.0,)])
case(
    f"select sum(data.price), avg(data.price) from {ORDERS}",
    lambda w: [(sum(r.data["price"] for r in objects(w)), mean(r.data["price"] for r in objects(w)))],
)
case(
    f"select data.sku, count(*) as n from {ORDERS} where data.price > 3 group by 1 order by 1",
    lambda w: sorted(Counter(r.data["sku"] for r in objects(w) if r.data["price"] > 3).items()),
)
case(
    f"select data.sku, sum(data.id) as s from {ORDERS} group by data.sku having sum(data.id) > 100 order by s",
    lambda w: sorted(
        (
            (k, sum(r.data["id"] for r in v))
            for k, v in grouped(objects(w), lambda r: r.data["sku"]).items()
            if sum(r.data["id"] for r in v) > 100
        ),
        key=lambda p: p[1],
    ),
)
case(
    f"select data.by.name, max(data.by.age) from {ORDERS} where data.id >= 0 group by 1 order by 1",
    lambda w: sorted(
        (k, max(r.data["by"]["age"] for r in v)) for k, v in grouped(objects(w), lambda r: r.data["by"]["name"]).items()
    ),
)
case(f"select data.lines[0].n, data.lines[1].n from {ORDERS} where seq = 4", lambda w: [(3, 4)])
case(f"select data.by from {ORDERS} where seq = 2", lambda w: [({"name": "Ann", "age": 21},)])
case(f"select data.lines from {ORDERS} where seq = 2", lambda w: [([{"n": 1}, {"n": 2}],)])
case(
    f"select meta.trace, meta.hop from {ORDERS} where seq in (2, 41) order by seq", lambda w: [("t1", 1), (None, None)]
)
case(f"select count(*) from {ORDERS} where data.paid", lambda w: [(20,)])
case(f"select count(*) from {ORDERS} where not data.paid", lambda w: [(20,)])
case(f"select count(data.note), count(*) from {ORDERS}", lambda w: [(4, 43)])
case(f"select data.nothing, data.by.nothing from {ORDERS} where seq = 1", lambda w: [(None, None)])
case(
    f"select seq, data.qty from {ORDERS} where seq > 40 order by seq", lambda w: [(41, None), (42, None), (43, "many")]
)
case(f"select data.SKU from {ORDERS} where DATA.Sku = 'MÜHLE' and seq < 6", lambda w: [("MÜHLE",)])
case(f"select get_json_object(data, '$.by.name') from {ORDERS} where seq = 1", lambda w: [("Bo",)])
case(f"select get_json_object(data, '$.lines[1].n') from {ORDERS} where seq = 3", lambda w: [("3",)])
case(f"select count(distinct data.sku), count(distinct data.user) from {ORDERS}", lambda w: [(5, 3)])
case(f"select data.sku || '/' || data.id as k from {ORDERS} where seq = 2", lambda w: [("KETTLE/1",)])
case(f"select o.data.sku from {ORDERS} as o where o.meta.hop = 9 and o.seq < 11", lambda w: [("MÜHLE",)])
case(
    f"select round(data.price / 4, 2), data.id % 7, data.id / 4 from {ORDERS} where seq = 10",
    lambda w: [(3.38, 2, 2.25)],
)
case(
    f"select cast(data.id as double), cast(data.price as int), cast(seq as string) from {ORDERS} where seq = 5",
    lambda w: [(4.0, 6, "5")],
)
case(f"select data.note from {ORDERS} where data.note is not null and seq < 10", lambda w: [("n7",)])
case(
    f"select min(data.sku), max(data.by.name) from {ORDERS} where data.price is not null", lambda w: [("FILTERS", "Bo")]
)

# --- times
case(f"select count(*) from {ORDERS} where ts > now() - interval 1 hour", lambda w: [(43,)])
case(f"select count(*) from {ORDERS} where ts < now() - interval '1' hour", lambda w: [(0,)])
case(
    f"select count(*) from {ORDERS} where ts >= timestamp '{{ts}}'",
    lambda w: [(sum(r.ts >= w.rows[ORDERS][20].ts for r in w.rows[ORDERS]),)],
)
case(
    f"select count(*) from {ORDERS} where ts < timestamp '{{ts}}'",
    lambda w: [(sum(r.ts < w.rows[ORDERS][20].ts for r in w.rows[ORDERS]),)],
)
case(
    f"select count(*) from {ORDERS} where ts between timestamp '{{ts}}' and timestamp '2100-01-01 00:00:00'",
    lambda w: [(sum(r.ts >= w.rows[ORDERS][20].ts for r in w.rows[ORDERS]),)],
)
case(
    f"select year(max(ts)) >= 2024, date_trunc('day', min(ts)) <= min(ts), hour(min(ts)) < 24 from {ORDERS}",
    lambda w: [(True, True, True)],
)
case(f"select extract(year from ts) > 2000 from {ORDERS} where seq = 1", lambda w: [(True,)])
case(f"select ts from {ORDERS} where seq = 21", lambda w: [(w.rows[ORDERS][20].ts.replace(" ", "T")[:-3] + "Z",)])

# --- joins, windows, sets
case(
    f"select o.seq, u.data.name from {ORDERS} o join {U} u on o.data.user = u.data.id where o.seq <= 4 order by o.seq",
    lambda w: [(r.seq, w.rows[U][r.data["user"]].data["name"]) for r in w.rows[ORDERS][:4]],
)
case(
    f"select u.data.name, count(o.seq) from {U} u left join {ORDERS} o on o.data.user=u.data.id group by 1 order by 1",
    lambda w: sorted((u.data["name"], sum(r.data["user"] == u.data["id"] for r in objects(w))) for u in w.rows[U]),
)
case(
    f"select data.name from {U} where data.id not in (select data.user from {ORDERS} where data.price >= 0) order by 1",
    lambda w: [("Di",)],
)
case(
    f"select u.data.name, count(*) from {V} v join {U} u on v.data.user = u.data.id group by 1 order by 1",
    lambda w: sorted(Counter(w.rows[U][r.data["user"]].data["name"] for r in w.rows[V]).items()),
)
case(
    f"select count(*) from {V} v join {ORDERS} o on v.data.user = o.data.user where v.kind = 'record'",
    lambda w: [(sum(v.data["user"] == o.data["user"] for v in w.rows[V] for o in objects(w)),)],
)
case(
    f"select seq, row_number() over (partition by tag order by seq) as n from {ORDERS} where seq < 7 order by seq",
    lambda w: [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)],
)
case(
    f"select seq, sum(data.id) over (order by seq) as s from {ORDERS} where seq < 5 order by seq",
    lambda w: [(1, 0), (2, 1), (3, 3), (4, 6)],
)
case(
    f"select seq, lag(data.sku) over (order by seq) as before from {ORDERS} where seq < 4 order by seq",
    lambda w: [(1, None), (2, "V60"), (3, "KETTLE")],
)
case(
    f"select seq, rank() over (order by data.user desc) as r from {ORDERS} where seq < 5 order by seq",
    lambda w: [(1, 3), (2, 2), (3, 1), (4, 3)],
)
case(
    f"with x as (select data.sku as sku, data.id as id from {ORDERS} where seq < 9) "
    "select sku, max(id) from x group by sku "
    "order by sku",
    lambda w: sorted(
        (k, max(r.data["id"] for r in v)) for k, v in grouped(w.rows[ORDERS][:8], lambda r: r.data["sku"]).items()
    ),
)
case(
    f"select seq from {ORDERS} where seq < 3 union all select seq from {U} order by seq",
    lambda w: [(1,), (1,), (2,), (2,), (3,), (4,)],
)
case(f"select seq from {U} except select seq from {ORDERS} where seq < 3 order by seq", lambda w: [(3,), (4,)])
case(
    f"select max(n) from (select tag, count(*) as n from {ORDERS} group by tag) x",
    lambda w: [(max(Counter(r.tag for r in w.rows[ORDERS]).values()),)],
)
case("select count(*) from engines*", lambda w: [(43 + 4 + 9 + 1,)])

# --- the lake and the server as one history, with gaps as rows
case(
    f"select kind, seq, gap_to, reason from {V} order by seq",
    lambda w: (
        [("record", s, None, None) for s in range(1, 6)]
        + [("gap", 6, 8, "cap")]
        + [("record", s, None, None) for s in range(9, 13)]
    ),
)
case(
    f"select data.page, count(*) from {V} where kind = 'record' group by 1 order by 1",
    lambda w: sorted(Counter(r.data["page"] for r in w.rows[V]).items()),
)
case(
    f"select kind, count(*), sum(coalesce(gap_to, seq) - seq + 1) from {V} group by kind order by kind",
    lambda w: [("gap", 1, 3), ("record", 9, 9)],
)
case(
    f"select seq from {V} where seq > 4 and kind = 'record' and tag is null order by seq limit 2",
    lambda w: [(9,), (10,)],
)

FEW = 9  # every ninth statement runs on Spark in the short suite, where one takes as long as forty on DuckDB


def ask(tables: Tables, sql: str, world: World) -> Rows:
    answer = tables.run(sql.replace("{ts}", world.rows[ORDERS][20].ts))
    rows = [tuple(map(plain, row)) for row in answer.rows(None)]
    return rows if " order by " in sql else sorted(rows, key=repr)


@pytest.mark.parametrize("sql", CASES)
def test_duckdb_answers_as_python(world: World, duckdb: Tables, sql: str):
    expected = CASES[sql](world)
    assert ask(duckdb, sql, world) == (expected if " order by " in sql else sorted(expected, key=repr))


@pytest.mark.parametrize(
    "sql", [pytest.param(sql, marks=[pytest.mark.torture] if at % FEW else []) for at, sql in enumerate(CASES)]
)
def test_spark_answers_as_duckdb(world: World, duckdb: Tables, on_spark: Tables, sql: str):
    assert ask(on_spark, sql, world) == ask(duckdb, sql, world)


def test_there_are_sixty_statements():
    assert len(CASES) >= 60


@pytest.mark.parametrize(
    ("sql", "spark_answer", "duckdb_answer"),
    [
        ("select 1 / 0", None, [("inf",)]),
        ("select 'it\\'s'", [("it's",)], None),
        ("select cast(1.7 as int)", [(1,)], [(2,)]),
        ('select "a"', [("a",)], None),
        (f"select data.sku as `a b` from {ORDERS} where seq = 1", [("V60",)], [("V60",)]),
        (f'select data.sku as "a b" from {ORDERS} where seq = 1', None, [("V60",)]),
        (f"select value:sku::string from {ORDERS} where seq = 1", [("V60",)], None),
        (f"select data ->> '$.sku' from {ORDERS} where seq = 1", None, [("V60",)]),
        (f"select unnest(data.lines) from {ORDERS} where seq = 1", None, [({"n": 0},), ({"n": 1},)]),
        (f"select explode(data.lines) from {ORDERS} where seq = 1", [({"n": 0},), ({"n": 1},)], None),
        (f"select date_format(ts, 'yyyy') > '2000' from {ORDERS} where seq = 1", [(True,)], None),
        (f"select strftime(ts, '%Y') > '2000' from {ORDERS} where seq = 1", None, [(True,)]),
    ],
)
def test_languages_differ_as_the_page_says(
    world: World, duckdb: Tables, on_spark: Tables, sql: str, spark_answer: Rows | None, duckdb_answer: Rows | None
):
    for tables, expected in ((duckdb, duckdb_answer), (on_spark, spark_answer)):
        if expected is None:
            with pytest.raises(Exception, match=r"\w"):
                ask(tables, sql, world)
        else:
            assert ask(tables, sql, world) == expected
