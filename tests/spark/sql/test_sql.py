"""`topics sql`: real topics, asked through the command, on DuckDB and on Spark."""

import csv
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from msgspec import Raw
from pyspark.sql import SparkSession

from tests.conftest import ServerProcess, StartServer
from tests.spark.lakes import archive
from topics.cli.main import main
from topics.cli.sql import completions
from topics.client import Client
from topics.lake import Lake, TypedColumns
from topics.spark import infer_schema, register
from topics.spark.data_source import TopicsSource
from topics.spark.failures import Failed
from topics.spark.source.read import DataLoss, read_span
from topics.spark.sql.on_duckdb import DuckTables
from topics.spark.sql.tables import check
from topics.spark.sql.text import BadQuery

SLOW = "select count(*) from range(1000000000000) where id % 7 = 3;"
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=["duckdb", pytest.param("spark", marks=pytest.mark.torture)])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "spark":
        request.getfixturevalue("spark")  # the command uses a session that runs
    return str(request.param)


@pytest.fixture
def ask(engine: str, client: Client, capsys: pytest.CaptureFixture[str]) -> Ask:
    return asker(engine, client, capsys)


@pytest.fixture
def ask_spark(spark: SparkSession, client: Client, capsys: pytest.CaptureFixture[str]) -> Ask:
    return asker("spark", client, capsys)


def asker(engine: str, client: Client, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["sql", f"--{engine}", *([] if "--lake" in arguments else ["--url", client.url]), *arguments])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
def orders(client: Client, topic: str) -> str:
    """A topic whose name needs quoting everywhere but here."""
    name = f"shop:{topic}.orders-eu"
    client.append(
        name,
        [
            {"data": {"sku": "V60", "qty": 2, "by": {"name": "Ann"}}, "tag": "web", "meta": {"trace": "a"}},
            {"data": {"sku": "KETTLE", "qty": 1, "by": {"name": "Bo"}, "lines": [{"n": 7}]}, "tag": "shop"},
            {"data": {"sku": "V60", "qty": 3, "by": {"name": "Bo"}}, "tag": "web"},
            {"data": "no object"},
        ],
    )
    return name


def rows(out: str) -> Any:
    return json.loads(out)


def test_fields_of_data_and_meta_are_selected_by_path(ask: Ask, orders: str):
    status, out, err = ask(
        f"select data.sku, sum(data.qty) as sold from {orders} where data.qty > 0 group by 1 order by 1", "--json"
    )
    assert (status, err) == (0, "")
    assert rows(out) == [{"sku": "KETTLE", "sold": 1}, {"sku": "V60", "sold": 5}]
    status, out, _ = ask(
        f"select o.data.by.name as who, o.data.lines[0].n as n, o.meta.trace from {orders} o order by seq", "--json"
    )
    assert rows(out)[:2] == [{"who": "Ann", "n": None, "trace": "a"}, {"who": "Bo", "n": 7, "trace": None}]


def test_data_alone_is_the_original_text(ask: Ask, orders: str):
    _, out, _ = ask(f"select * from {orders} where seq = 1", "--json")
    [row] = rows(out)
    assert list(row) == ["topic", "seq", "ts", "node", "tag", "meta", "data"]
    assert row["data"] == '{"sku":"V60","qty":2,"by":{"name":"Ann"}}'
    assert row["ts"].endswith("Z")
    _, out, _ = ask(f"select *, data.sku from {orders} where seq = 1", "--json")
    assert list(rows(out)[0]) == ["topic", "seq", "ts", "node", "tag", "meta", "data", "sku"]


def test_answers_are_a_table_csv_or_json_lines(ask: Ask, orders: str):
    query = f"select seq, tag, data.sku from {orders} where tag is not null order by seq"
    assert ask(query)[1].splitlines() == [
        "seq  tag   sku",
        "---  ----  ------",
        "  1  web   V60",
        "  2  shop  KETTLE",
        "  3  web   V60",
        "3 rows",
    ]
    assert list(csv.reader(io.StringIO(ask(query, "--csv")[1])))[:2] == [["seq", "tag", "sku"], ["1", "web", "V60"]]
    lines = ask(query, "--format", "jsonl", "--limit", "2")[1].splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]
    assert rows(ask(f"select 1 from {orders} where seq < 0", "--json")[1]) == []


def test_tables_can_be_listed_described_joined_and_selected_by_prefix(ask: Ask, orders: str):
    assert {"table": orders} in rows(ask("show tables", "--json")[1])
    described = {row["column"]: row["type"] for row in rows(ask(f"describe {orders}", "--json")[1])}
    assert (described["seq"], described["data.qty"], described["data.by"]) == (
        "bigint",
        "bigint",
        "struct<name:string>",
    )
    query = f"select count(*) as n from {orders} a join {orders} b on a.data.sku = b.data.sku where a.seq < 2"
    assert rows(ask(query, "--json")[1]) == [{"n": 2}]
    assert rows(ask(f"select count(*) as n from {orders[:-3]}*", "--json")[1]) == [{"n": 4}]
    query = f"with x as (select * from {orders}) select count(*) as n from x a, x b where a.seq < 2 and b.seq > 1"
    assert rows(ask(query, "--json")[1]) == [{"n": 3}]


def test_field_in_no_sample_is_null_with_a_note(ask: Ask, orders: str):
    status, out, err = ask(f"select data.skuu, data.by.age from {orders} where seq = 1", "--json")
    assert (status, rows(out)) == (0, [{"skuu": None, "age": None}])
    assert f"data.skuu is in none of 4 records of {orders} that were sampled; did you mean data.sku?" in err


def test_missing_field_of_a_join_names_the_tables(ask: Ask, client: Client, orders: str):
    users = f"{orders}.users"
    client.append(users, [{"data": {"name": "Ann", "age": 7}}])
    join = f"from {orders} as o join {users} u on o.data.by.name = u.data.name"
    assert rows(ask(f"select o.data.sku, u.data.age {join}", "--json")[1]) == [{"sku": "V60", "age": 7}]
    assert ask(f"select o.data.sku, u.data.age {join}")[2] == ""
    assert ask(f"select data.sku from {orders} union all select data.name from {users}")[2] == ""
    shown = ask(f"select o.data.age, u.data.nothing {join}")[2].splitlines()
    assert shown == [
        f"note: data.nothing is in none of 4 records of {orders} and 1 record of {users} that were sampled"
    ]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("select * from {}x", "there is no topic {}x; did you mean {}"),
        ("select nosuch from {}", "nosuch"),
        ("select * fro {}", "^"),
        ("drop table {}", "only queries can be run here"),
        ("select cast('x' as int)", "'x'"),
        (";", "there is no statement"),
    ],
)
def test_errors_are_short(ask: Ask, orders: str, query: str, message: str):
    status, out, err = ask(query.replace("{}", orders))
    assert (status in (1, 2), out) == (True, "")
    assert message.replace("{}", orders) in err
    assert len(err.splitlines()) < 8
    assert "Traceback" not in err


def test_lakes_are_tables_with_and_without_a_server(ask: Ask, client: Client, orders: str, tmp_path: Path):
    archive(client, tmp_path, orders, upto=2)
    client.put_topic(orders, cap_records=1)
    count = f"select count(*) as n, min(seq) as low from {orders}"
    assert rows(ask(count, "--json")[1]) == [{"n": 1, "low": 4}]
    assert rows(ask(count, "--json", "--lake", str(tmp_path))[1]) == [{"n": 2, "low": 1}]
    both = ("--json", "--lake", str(tmp_path), "--url", client.url)
    status, _, err = ask(count, *both)
    assert status == 1
    assert f"seqs 3 to 3 of topic {orders}" in err
    assert "next: neither the server nor the lake has these records: pass --gaps" in err
    archive(client, tmp_path, orders)
    assert {"table": orders} in rows(ask("show tables", *both)[1])
    query = f"select kind, seq, gap_to, reason from {orders} order by seq"
    assert [tuple(row.values()) for row in rows(ask(query, "--gaps", *both)[1])] == [
        ("record", 1, None, None), ("record", 2, None, None), ("gap", 3, 3, "cap"), ("record", 4, None, None),
    ]  # fmt: skip
    assert rows(ask(count, "--gaps", *both)[1]) == [{"n": 4, "low": 1}]


def test_relative_paths_are_those_of_the_caller(
    ask_spark: Ask,
    spark: SparkSession,
    client: Client,
    start_server: StartServer,
    orders: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """The session has started in another directory, as a session on a cluster has."""
    archive(client, tmp_path / "lake", orders)
    keyed = start_server(api_keys="secret")
    (tmp_path / "key").write_text("secret\n")
    with Client(keyed.url, token="secret") as other:
        other.append("t", [{"data": 1}])
    monkeypatch.chdir(tmp_path)
    for lake in ("lake", "./lake/"):
        assert rows(ask_spark(f"select count(*) as n from {orders}", "--json", "--lake", lake)[1]) == [{"n": 4}]
    found = ask_spark("select count(*) as n from t", "--json", "--url", keyed.url, "--token-file", "key")[1]
    assert rows(found) == [{"n": 1}]
    assert "sku" in infer_schema(spark, orders, lake="lake", lakeOnly=True).names
    register(spark, database="relative", lake="lake", lakeOnly="true")
    tables = spark.sql("SHOW TABLES IN relative").where("NOT isTemporary").collect()
    [name] = [row.tableName for row in tables]
    assert spark.table(f"relative.`{name}`").count() == 4


def test_typed_columns_of_a_lake_are_columns_of_its_tables(ask: Ask, client: Client, orders: str, tmp_path: Path):
    lake = Lake(str(tmp_path))
    lake.create()
    lake.table(orders).add_columns(TypedColumns.parse("sku STRING, qty INT"))
    archive(client, tmp_path, orders)
    query = f"select sku, sum(qty) as sold, max(data.by.name) as who from {orders} where qty > 0 group by 1 order by 1"
    sold = [{"sku": "KETTLE", "sold": 1, "who": "Bo"}, {"sku": "V60", "sold": 5, "who": "Bo"}]
    for where in (["--lake", str(tmp_path)], ["--lake", str(tmp_path), "--url", client.url]):
        status, out, err = ask(query, "--json", *where)
        assert (status, err, rows(out)) == (0, "", sold)
    described = rows(ask(f"describe {orders}", "--json", "--lake", str(tmp_path))[1])
    assert {"column": "qty", "type": "int"} in described
    assert lake.table(orders).has_in_every_file(["sku", "qty"])  # so that Spark reads the columns of the files
    assert rows(ask(f"select count(*) as n from {orders} where sku is null", "--json", "--lake", str(tmp_path))[1]) == [
        {"n": 1}
    ]


def test_typed_columns_have_one_rule_in_lake_and_server(ask: Ask, client: Client, topic: str, tmp_path: Path):
    """The first record was archived before its columns were added, the third is only on the server."""
    lake, written = Lake(str(tmp_path)), Raw('{"p":1.25,"s":{"a": 1}}')
    client.append(topic, [{"data": written}])
    archive(client, tmp_path, topic)
    lake.table(topic).add_columns(TypedColumns.parse("p DECIMAL(10,1), s STRING"))
    client.append(topic, [{"data": written}])
    archive(client, tmp_path, topic)
    query = f"select cast(p as string) as p, s from {topic} where seq > 0 order by seq"
    one = {"p": "1.3", "s": '{"a": 1}'}
    assert rows(ask(query, "--json", "--lake", str(tmp_path))[1]) == [one] * 2
    client.append(topic, [{"data": written}])
    assert rows(ask(query, "--json", "--lake", str(tmp_path), "--url", client.url)[1]) == [one] * 3
    assert lake.table(topic).has_in_every_file(["p", "s"]) is False


def test_prompt_continues_after_errors_and_ends(ask: Ask, orders: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    typed = iter(["help", "select nosuch", ";", "select count(*) as n", f"from {orders};", "quit", "select 2;"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    status, out, err = ask()
    assert status == 0
    assert "show tables;" in out
    assert "nosuch" in err
    assert out.splitlines()[-4:] == ["n", "-", "4", "1 row"]
    assert list(typed) == ["select 2;"]


def test_prompt_waits_for_the_end_of_a_statement(
    ask_spark: Ask, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    lines = iter(["select 'a;", "b' as x; select 2 as y;", "select", KeyboardInterrupt, SLOW, "select 1 -- ;", "as z;"])
    typed: list[str] = []

    def interrupt_once_it_runs() -> None:
        jobs = spark.sparkContext.statusTracker()
        while not jobs.getActiveJobsIds():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    def type_a_line(prompt: str) -> str:
        typed.append(prompt)
        line = next(lines, EOFError)
        if not isinstance(line, str):
            raise line
        if line == SLOW:
            threading.Thread(target=interrupt_once_it_runs, daemon=True).start()
        return line

    monkeypatch.setattr("builtins.input", type_a_line)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as it is where the command starts Spark
    try:
        status, out, err = ask_spark()
    finally:
        signal.signal(signal.SIGINT, before)
    assert (status, err) == (0, "")
    assert [prompt.strip() for prompt in typed] == [
        "topics>",
        "->",
        "topics>",
        "->",
        "topics>",
        "topics>",
        "->",
        "topics>",
    ]
    shown = out.splitlines()[1:]
    assert shown == [
        "x", "----", "a;⏎b", "1 row", "y", "-", "2", "1 row", "", "interrupted", "z", "-", "1", "1 row", "",
    ]  # fmt: skip


def test_cold_start_names_the_command_that_keeps_spark_running(
    client: Client, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def start(*_: Any, **__: Any) -> None:
        raise Failed("not now")

    monkeypatch.setattr("topics.spark.spark_session.session", start)
    monkeypatch.setattr("topics.spark.warm.usable", lambda: None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    assert main(["sql", "--spark", "--url", client.url, "select 1"]) == 1
    assert "topics: starting Spark: 10 to 30 seconds; `topics spark start` saves them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--url", "URL", "select * from shop.oders"], 2, "there is no topic shop.oders; did you mean shop.orders"),
        (["--url", "URL", "select 1 from shop.orders a join nix b on a.x = b.y"], 2, "there is no topic nix"),
        (["--url", "URL", "describe nix"], 2, "there is no topic nix; there "),
        (["--url", "URL", "drop table x; select 1"], 2, "statement 1 of 2 (drop table x)"),
        (["--url", "URL", "drop table shop.orders"], 2, "only queries can be run here"),
        (["--url", "http://127.0.0.1:9", "select 1"], 1, "no answer from http://127.0.0.1:9"),
        (["--url", "nonsense", "select 1"], 2, "'nonsense' is not the URL of a server"),
        (["--lake", "DIR/none", "select 1"], 2, "DIR/none is not a lake"),
        (["--path", "DIR/none", "select 1"], 2, "data directory DIR/none cannot be read"),
        (["--url", "URL", "--token-file", "DIR/none", "select 1"], 2, "DIR/none cannot be read"),
    ],
)
def test_certain_errors_are_reported_before_an_engine_starts(
    server: ServerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, message: str,
):  # fmt: skip
    def start(*_: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("topics.cli.sql.ENGINES", {"spark": start, "duckdb": start})
    client.append("shop.orders", [{"data": 1}])
    given = [one.replace("URL", server.url).replace("DIR", str(tmp_path)) for one in arguments]
    assert main(["sql", *given]) == status
    assert message.replace("DIR", str(tmp_path)) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (set(), "there is none yet"),
        ({"users", "sys:pipelines"}, "there are users, sys:pipelines"),
        ({*"abcdef"}, "there are a, b, c, d, e and 1 other; SHOW TABLES lists them"),
    ],
)
def test_missing_topic_lists_existing_ones(names: set[str], shown: str):
    with pytest.raises(BadQuery, match=f"^there is no topic nothere; {shown}$"):
        check("select * from nothere", names)


def test_session_is_registered_once(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    reported: list[object] = []
    monkeypatch.setattr(type(spark.dataSource), "register", lambda self, source: reported.append(source))
    assert register(spark) is spark
    assert reported == []
    other = spark.newSession()
    assert register(register(other)) is other
    assert reported == [TopicsSource]


def test_statements_are_read_from_standard_input(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("select 1 as a;\nselect 2 as a;"))
    assert ask("-", "--csv")[1].split() == ["a", "1", "a", "2"]


def test_failed_statement_is_named_and_ends_piped_input(ask: Ask, monkeypatch: pytest.MonkeyPatch):
    piped = "select 1 as a\n;\nselect bad bad bad\n from x y z;\nselect 3 as a;"
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped))
    status, out, err = ask("--csv")
    assert (status, out.split()) == (2, ["a", "1"])
    assert err.startswith("topics: statement 2 of 3 (select bad bad bad from x y z), 1 more not run: ")
    assert "bad" in err.splitlines()[0]


def test_two_sources_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["sql", "--url", "http://127.0.0.1:1", "--path", "/x", "select 1"]) == 2
    assert "path and url: give one of them" in capsys.readouterr().err


@pytest.mark.torture
def test_failure_of_a_query_is_reported_in_every_format(ask_spark: Ask, orders: str):
    for form in ("--csv", "--json"):
        status, _, err = ask_spark(f"select cast(tag as int) as n from {orders}", form)
        assert (status, "CAST_INVALID_INPUT" in err, "An error occurred" in err) == (2, True, False)


def test_equal_column_names_are_refused_as_json_and_kept_as_csv(ask: Ask):
    status, out, err = ask("select 1 as a, 2 as a", "--json")
    assert (status, out) == (2, "")
    assert "several columns are called a" in err
    assert ask("select 1 as a, 2 as a", "--csv")[1].split() == ["a,a", "1,2"]


def test_rows_are_written_as_parquet(ask: Ask, orders: str, tmp_path: Path):
    file = tmp_path / "sold.parquet"
    query = f"select seq, tag, data.sku from {orders} where seq < 4 order by seq"
    status, out, err = ask(query, "--parquet", str(file))
    assert (status, out, err) == (0, f"{file}: 3 rows\n", "")
    assert pq.read_table(file).to_pylist()[1] == {"seq": 2, "tag": "shop", "sku": "KETTLE"}
    assert [one.name for one in tmp_path.iterdir()] == ["sold.parquet"]
    printed = ask("select 1; select 2", "--parquet", str(file))[2]
    assert "--parquet, --watch and --format arrays: pass one statement" in printed
    assert "Parquet needs distinct names" in ask("select 1 as a, 2 as a", "--parquet", str(file))[2]
    assert ask(f"select * from {orders} where seq < 0", "--parquet", str(file))[1] == f"{file}: 0 rows\n"


def test_watch_repeats_a_statement_with_new_records(
    client: Client, orders: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def grow(seconds: float) -> None:
        if client.append(orders, [{"data": 1}]).last_seq > 6:
            raise KeyboardInterrupt

    monkeypatch.setattr("topics.cli.sql.sleep", grow)
    query = f"select count(*) as n from {orders}"
    assert main(["sql", "--duckdb", "--url", client.url, query, "--csv", "--watch", "5s"]) == 0
    assert capsys.readouterr().out.split() == ["n", "4", "n", "5", "n", "6"]


def test_tab_completes_topics_columns_and_fields_that_were_used(client: Client, orders: str):
    with closing(DuckTables({"url": client.url})) as tables:
        assert completions(tables.words(), orders[:-2]) == [orders]
        assert completions(tables.words(), "data.") == []
        list(tables.run(f"select data.sku from {orders}").rows(None))
        assert completions(tables.words(), "DATA.b") == ["data.by"]
        assert completions(tables.words(), "sel") == ["select"]


def test_running_statement_of_duckdb_is_cancelled(client: Client):
    with closing(DuckTables({"url": client.url})) as tables:
        failures: list[Exception] = []

        def run() -> None:
            try:
                list(tables.run("select count(*) from range(1000000000000) r(id) where id % 7 = 3").rows(None))
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            tables.cancel()
            thread.join(0.05)
        assert "interrupt" in str(failures[0]).lower()


def test_lost_range_fails_a_query_of_duckdb_and_is_named(client: Client, topic: str):
    client.append(topic, [{"data": at} for at in range(9)])
    with closing(DuckTables({"url": client.url})) as tables:
        answer = tables.run(f"select count(*) from {topic}")
        client.put_topic(topic, cap_records=2)  # after the plan, before the read
        with pytest.raises(DataLoss, match="seqs 1 to 7"):
            list(answer.rows(None))


PUSHED = {  # conditions, and how many of the records 11 to 50 are read for them
    "seq > 20 and seq <= 24": 4,
    "seq in (17, 19)": 3,
    "seq = 30 or seq between 33 and 35": 6,
    "44 < seq and data = '3'": 6,
    "seq <> 13 and seq + 1 > 5": 40,
    "seq < 13 or seq > 48": 40,
    "seq < 0": 0,
    "seq > 9000000000000000000": 0,
    "ts < '2020-01-01'": 40,  # the records 1 to 10 are gone, so the server cannot tell where this time begins
    "ts < epoch_ms(MIDDLE)": 20,
    "ts >= epoch_ms(MIDDLE)": 20,
    "ts >= '2020-01-01' and ts < '2035-01-01' and seq < 14": 3,
    "ts > now() + interval 1 hour": 0,
    "ts > now() + interval 1 hour or seq = 15": 40,
    "ts is null or ts < '2035-01-01'": 40,
    "topic = 'other' or tag is null and topic > 'zzz'": 0,
}


def test_duckdb_reads_only_the_seqs_and_times_of_a_query(client: Client, topic: str, monkeypatch: pytest.MonkeyPatch):
    client.append(topic, [{"data": at % 4} for at in range(30)])
    middle = client.diff(topic, from_seq=29).records[0].ts + 1
    while time.time() * 1000 < middle:
        pass
    client.append(topic, [{"data": at % 4} for at in range(20)])
    client.put_topic(topic, cap_records=40)
    read: list[int] = []

    def counting(*arguments: Any) -> Iterator[Any]:
        for batch in read_span(*arguments):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr("topics.spark.sql.on_duckdb.read_span", counting)
    found: dict[str, int] = {}
    with closing(DuckTables({"url": client.url})) as tables:
        for condition in PUSHED:
            read.clear()
            where = condition.replace("MIDDLE", str(middle))
            rows = list(tables.run(f"select seq from {topic} where {where}").rows(None))
            found[condition] = sum(read)
            unpushed = f"with every as materialized (select * from {topic}) select seq from every where {where}"
            assert rows == list(tables.run(unpushed).rows(None)), condition
    assert found == PUSHED


@pytest.mark.parametrize(
    ("installed", "arguments", "engine", "message"),
    [
        ({"pyspark", "duckdb"}, [], "spark", ""),
        ({"pyspark", "duckdb"}, ["--duckdb"], "duckdb", ""),
        ({"duckdb"}, [], "duckdb", ""),
        ({"duckdb"}, ["--spark"], "", "sql needs Spark, which is not installed"),
        (set(), [], "", "sql needs DuckDB or Spark, which is not installed"),
        ({"pyspark"}, ["--duckdb"], "", "sql needs DuckDB, which is not installed"),
        ({"pyspark", "duckdb"}, ["--duckdb", "--master", "local[1]"], "", "--master: only Spark has a master"),
    ],
)
def test_engine_is_chosen_by_options_and_packages(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    installed: set[str], arguments: list[str], engine: str, message: str,
):  # fmt: skip
    chosen: list[str] = []

    @contextmanager
    def start(name: str) -> Iterator[None]:
        chosen.append(name)
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr("topics.cli.sql.is_installed", lambda package: package in installed)
    starts = {name: lambda *_, name=name: start(name) for name in ("spark", "duckdb")}
    monkeypatch.setattr("topics.cli.sql.ENGINES", starts)
    status = main(["sql", "--url", server.url, *arguments, "select 1"])
    assert (chosen, status == 130) == ([engine] if engine else [], bool(engine))
    assert message in capsys.readouterr().err
