"""Every pipeline reports a failure in the same way: one JSON object, one exit status, and the next step."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ServerProcess
from tests.spark.lakes import archive as archive_by_hand
from topics.cli import pipeline
from topics.cli.main import main
from topics.cli.options import build_parser
from topics.client import Client

pytestmark = pytest.mark.skipif(not find_spec("pyspark"), reason="needs the extra spark")

KEYS = "all,reader:read,eraser:read+write+delete,few:read+write:mine."
UNREACHABLE_URL = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("server")
    running = ServerProcess(directory, {"data_dir": directory / "data", "api_keys": KEYS})
    with Client(running.url, token="all") as client:
        for topic in ("shop.orders", "shop.prices", "mine.t"):
            client.append(topic, [{"data": 1, "tag": "user-42"}])
    yield running
    running.stop()


class Ended(NamedTuple):
    status: int
    report: dict[str, Any]
    err: str


@pytest.fixture
def run(server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def call(line: str, *, token: str | None = "all") -> Ended:
        words = line.replace("URL", server.url).replace("DIR", str(tmp_path)).split()
        key = [] if token is None else ["--token", token]
        status = main(["pipeline", *words, *key, "--json"])
        said = capsys.readouterr()
        return Ended(status, json.loads(said.out), said.err)

    return call


def lines(*texts: str) -> Any:
    return pytest.mark.parametrize("line", texts, ids=[text.split()[0] for text in texts])


def check(ended: Ended, *, status: int, kind: str) -> str:
    """Check the parts of every failure and return its message."""
    report, problem = ended.report, ended.report["error"]
    assert (ended.status, report["state"], report["ok"], problem["kind"]) == (status, "failed", False, kind)
    assert problem["next"] == report["next"] != ""
    assert f"topics: {problem['message']}\nnext: {problem['next']}\n" in ended.err
    return str(problem["message"])


@lines(
    "archive --url URL --topic shop.order --lake DIR/lake",
    "compact --url URL --topic shop.order --table DIR/out",
    "rollup --url URL --topic shop.order --table DIR/out --window 1minute",
    "replay --url URL --from-url URL --topic shop.order --into again",
    "mirror --from URL --to URL/v --topic shop.order",
    "erase --url URL --topic shop.order --match user-42",
)
def test_missing_topic_is_a_usage_error(run: Any, line: str, server: ServerProcess) -> None:
    if line.startswith("mirror"):
        line = line.replace("URL/v", server.url.replace("127.0.0.1", "localhost"))
    ended = run(line)
    message = check(ended, status=2, kind="usage")
    assert "shop.order" in message
    assert server.url in message


@lines(
    "archive --url URL --topic shop.orders --lake hdfs:///lake",
    "audit --url URL --lake DIR/none",
    "compact --url URL --topic shop.orders --table DIR/out --lake DIR/none",
    "rollup --url URL --topic shop.orders --table DIR/out --window 1minute --lake DIR/none",
    "replay --url URL --lake DIR/none --topic shop.orders --into again",
    "erase --url URL --lake DIR/none --match user-42",
)
def test_missing_lake_is_a_usage_error(run: Any, line: str) -> None:
    message = check(run(line), status=2, kind="usage")
    assert "lake" in message


@lines(
    "archive --url URL --prefix shp. --lake DIR/lake",
    "erase --url URL --prefix shp. --match user-42",
    "mirror --from URL --to OTHER --prefix shp.",
)
def test_prefix_without_topics_is_a_usage_error(run: Any, line: str, server: ServerProcess) -> None:
    ended = run(line.replace("OTHER", server.url.replace("127.0.0.1", "localhost")))
    message = check(ended, status=2, kind="usage")
    assert message == f"no topic on {server.url} begins with 'shp.'"
    assert "shop.orders" in ended.report["next"]


def test_refused_arguments_have_a_report(run: Any) -> None:
    ended = run("compact --url URL --topic a --into a")
    assert check(ended, status=2, kind="usage").startswith("a cannot be compacted into itself")
    assert (ended.report["pipeline"], ended.report["run_id"]) == ("compact", "")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("archive --url URL --topic ../../x --lake DIR/lake", "is not a topic name"),
        ("archive --url URL --topic a --lake /etc/passwd", "/etc/passwd is a file, and a lake is a directory"),
        ("archive --url URL --topic a --lake=", "the path of the lake is empty"),
        ("replay --url URL --lake= --topic a --into b", "the path is empty: give a directory"),
        ("replay --url URL --from-url URL --topic a --into b --rate nan", "rate: a number"),
        ("replay --url URL --from-url URL --topic a --into b --positions a/b", "--positions: 'a/b' is not a topic"),
        ("compact --url URL --topic shop.orders --table /dev/null", "/dev/null is a file, and a table is a directory"),
        ("erase --url URL --match a\udcff", "is not UTF-8 text"),
        ("rollup --url URL --topic a --into b --window 1h --watermark 999999999weeks", "is longer than 1000 years"),
        ("rollup --url URL --topic a --into b --window 1h --sql select(1)as(x)", "a query FROM records"),
    ],
    ids=str,
)
def test_invalid_values_are_usage_errors(run: Any, line: str, message: str) -> None:
    assert message in check(run(line), status=2, kind="usage")


@pytest.mark.parametrize("every", ["-5", "nan", "inf", "soon"])
def test_pause_is_a_number_of_seconds(run: Any, capsys: pytest.CaptureFixture[str], every: str) -> None:
    with pytest.raises(SystemExit):
        run(f"archive --url URL --topic a --lake DIR/lake --every={every}")
    assert "is not a number of seconds" in json.loads(capsys.readouterr().out)["error"]["message"]


def in_spark(text: str) -> BaseException:
    from pyspark.errors import PythonException

    return PythonException(text)


def test_full_disk_in_a_task_is_reported_with_its_path() -> None:
    from topics.spark.failures import explain, kind_of

    said = "/lake/_lake/staging: No space left on device; free space there, and run the same command again"
    error = in_spark(
        "Job aborted: Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left on device\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f"Traceback (most recent call last):\n  File y\ntopics.lake.errors.LakeError: {said}\n\n\tat org.apache"
    )
    assert (kind_of(error).wire, explain(error)) == ("lake", said)
    here = OSError(30, "Read-only file system", "/lake/notes")
    assert (kind_of(here).wire, explain(here).partition(";")[0]) == ("lake", "/lake/notes: Read-only file system")


def test_value_that_an_expression_refuses_is_reported_with_a_fix() -> None:
    from topics.spark.failures import kind_of, next_step

    error = in_spark("[CAST_INVALID_INPUT] The value 'cheap' of the type STRING cannot be cast to INT.")
    assert kind_of(error).wire == "usage"
    assert "try_cast" in next_step(error)
    outside = in_spark("[INVALID_ARRAY_INDEX] The index 0 is out of bounds. The array has 0 elements.")
    assert "get(array, index)" in next_step(outside)


@lines(
    f"archive --url {UNREACHABLE_URL} --prefix a --lake DIR/lake",
    f"audit --url {UNREACHABLE_URL} --lake DIR/lake",
    f"mirror --from URL --to {UNREACHABLE_URL} --prefix shop.",
)
def test_server_that_does_not_answer_is_a_failure(run: Any, line: str) -> None:
    ended = run(line)
    assert UNREACHABLE_URL in check(ended, status=1, kind="unreachable")
    assert "check that the server runs" in ended.report["next"]


@pytest.mark.parametrize(
    ("token", "line", "message", "step"),
    [
        (None, "archive --url URL --prefix a --lake DIR/l", "URL asks for a key, and none was given", "use a key"),
        ("nix", "archive --url URL --prefix a --lake DIR/l", "URL does not know the key", "use a key"),
        (
            "few", "archive --url URL --topic shop.orders --lake DIR/l",
            "the key may not use shop.orders on URL: its prefixes do not cover that name",
            "use a key whose prefixes cover shop.orders",
        ),
        (
            "reader", "archive --url URL --topic shop.orders --lake DIR/l --trim",
            "the key lacks the scope delete for topic shop.orders on URL", "use a key that has the scope delete",
        ),
        (
            "eraser", "archive --url URL --topic shop.orders --lake DIR/l --trim",
            "the key lacks the scope admin for topic shop.orders on URL", "use a key that has the scope admin",
        ),
    ],
)  # fmt: skip
def test_forbidden_key_is_reported_with_scope_topic_and_server(
    run: Any, server: ServerProcess, tmp_path: Path, token: str | None, line: str, message: str, step: str
) -> None:
    ended = run(line, token=token)
    assert check(ended, status=1, kind="forbidden") == message.replace("URL", server.url)
    assert ended.report["next"].startswith(step)
    assert not list(tmp_path.glob("l/*/_delta_log"))


@pytest.mark.parametrize(
    ("name", "package", "kind", "extra"),
    [("compact", "pyspark", "no_spark", "spark"), ("audit", "pyarrow", "not_installed", "lake")],
)
def test_missing_package_is_reported_with_its_extra(
    capsys: pytest.CaptureFixture[str], name: str, package: str, kind: str, extra: str
) -> None:
    args = build_parser().parse_args(["pipeline", name, "--topic", "t", *ARGUMENTS[name], "--json"])

    def execute(args: object) -> Any:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    assert pipeline.run(name, execute, args, pipeline.describe) == 1
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert (report["pipeline"], report["ok"], report["error"]["kind"]) == (name, False, kind)
    assert f"[{extra}]" in report["next"]
    assert "-m pip install" in said.err


ARGUMENTS = {"compact": ["--table", "out"], "audit": ["--lake", "lake"]}


def test_interruption_is_reported_with_its_own_status(capsys: pytest.CaptureFixture[str]) -> None:
    class Args:
        json, dry_run = True, False

    def execute(args: object) -> Any:
        raise KeyboardInterrupt

    assert pipeline.run("audit", execute, Args(), pipeline.describe) == 130  # type: ignore[arg-type]
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "interrupted"


@lines(
    "audit --url URL --lake DIR/nope",
    "replay --url URL --lake DIR/nope --topic t --into t2 --dry-run",
)
def test_missing_lake_fails_before_spark_starts(run: Any, line: str) -> None:
    ended = run(line)
    assert "is not a lake" in check(ended, status=2, kind="usage")
    assert "starting Spark" not in ended.err


def test_topic_missing_in_lake_is_reported_with_existing_topics(
    run: Any, server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.url, token="all") as client:
        archive_by_hand(client, tmp_path / "lake", "shop.orders")
    ended = run("replay --url URL --lake DIR/lake --topic shop.oders --into t2 --dry-run")
    assert check(ended, status=2, kind="usage") == f"topic shop.oders does not exist in {tmp_path}/lake"
    assert ended.report["next"] == "check the name; there is shop.orders"
    missing = run("audit --url URL --lake DIR/lake --topic nope")
    check(missing, status=2, kind="usage")
    assert "shop.prices" in missing.report["next"]
    assert "starting Spark" not in ended.err + missing.err


def test_unreachable_server_hint_says_to_check_the_address(run: Any) -> None:
    ended = run(f"audit --url {UNREACHABLE_URL} --lake DIR")
    check(ended, status=1, kind="unreachable")
    assert ended.report["next"] == (
        "check that the server runs and that the URL is right, then run the same command again"
    )
