"""`topics pipeline` and `topics sql` find their server and its key as all other commands do."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from topics.cli import sql
from topics.cli.main import main
from topics.cli.options import build_parser

pytestmark = pytest.mark.skipif(not find_spec("pyspark"), reason="needs the extra spark")

KEY = "s3cret-key"
ELSEWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("guarded"), {"api_keys": KEY})
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TOPICS_URL", "TOPICS_CONTEXT", "TOPICS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def prod(guarded: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that requires a key, as the current context."""
    (tmp_path / "key").write_text(KEY)
    assert main(["context", "add", "prod", "--url", guarded.url, "--token-file", str(tmp_path / "key")]) == 0
    capsys.readouterr()


PIPELINES = (
    "archive --topic no-such --lake DIR/lake",
    "compact --topic no-such --table DIR/out",
    "rollup --topic no-such --table DIR/out --window 1minute",
    "erase --topic no-such --match user-42",
    "audit --lake DIR/lake",
    "replay --lake DIR/lake --topic no-such --into again",
)


def problem_of(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run a pipeline that fails, and return the problem of its report."""
    assert main(["pipeline", *line.replace("DIR", str(tmp_path)).split(), "--json"]) != 0
    problem: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    return problem


@pytest.mark.parametrize("line", PIPELINES, ids=[line.split()[0] for line in PIPELINES])
def test_pipeline_uses_server_and_key_of_the_current_context(
    line: str, prod: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server answered with its topics, or the pipeline found no lake: the key was accepted in both cases."""
    assert problem_of(line, tmp_path, capsys)["kind"] in ("usage", "lake")


def test_address_of_a_pipeline_is_chosen_in_the_order_of_all_commands(
    prod: None, guarded: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    line = PIPELINES[0]
    assert problem_of(f"{line} --url {ELSEWHERE}", tmp_path, capsys)["kind"] == "unreachable"
    assert problem_of(f"{line} --url {guarded.url}", tmp_path, capsys)["kind"] == "forbidden", "the key of a context"
    unknown = problem_of(f"{line} --context nowhere", tmp_path, capsys)
    assert (unknown["kind"], unknown["message"]) == ("usage", "there is no context 'nowhere'")
    monkeypatch.setenv("TOPICS_URL", ELSEWHERE)
    assert problem_of(line, tmp_path, capsys)["kind"] == "unreachable"
    assert problem_of(f"{line} --context prod", tmp_path, capsys)["kind"] == "usage"


def test_replay_keeps_the_key_of_a_context_from_its_source(
    prod: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from topics.spark.pipelines.run.job import PipelineJob

    sent: dict[str, str | None] = {}

    def enter(job: PipelineJob) -> PipelineJob:
        for url in (guarded_url, ELSEWHERE):
            sent[url] = job.connection(url).read_token()
        raise KeyboardInterrupt

    guarded_url = sql._options(sql_arguments())["url"]
    monkeypatch.setattr(PipelineJob, "__enter__", enter)
    main(["pipeline", "replay", "--from-url", ELSEWHERE, "--topic", "t", "--into", "again"])
    assert sent == {guarded_url: KEY, ELSEWHERE: None}


def sql_arguments(*words: str) -> Any:
    return build_parser(["sql"]).parse_args(["sql", "select 1", *words])


def test_sql_uses_the_current_context_unless_a_lake_or_directory_is_given(prod: None, guarded: ServerProcess) -> None:
    chosen = sql._options(sql_arguments())
    assert (chosen["url"], Path(chosen["tokenFile"]).read_text()) == (guarded.url, KEY)
    assert sql._options(sql_arguments("--lake", "/lake")) == {"lake": "/lake", "lakeOnly": "true"}
    assert sql._options(sql_arguments("--path", "/data")) == {"path": "/data"}
    both = sql._options(sql_arguments("--lake", "/lake", "--context", "prod"))
    assert (both["url"], both["lake"]) == (guarded.url, "/lake")
    assert sql._options(sql_arguments("--url", ELSEWHERE)) == {"url": ELSEWHERE}


def test_sql_reads_with_the_key_of_the_current_context(prod: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "select * from no_such"]) == 2, "the server listed its topics"
    assert "no_such" in capsys.readouterr().err
    assert main(["sql", "select * from no_such", "--context", "nowhere"]) == 3
    assert "topics context ls" in capsys.readouterr().err


def test_sql_uses_topics_url_before_the_current_context(prod: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_URL", "http://topics.example:4000")
    assert sql._options(sql_arguments()) == {"url": "http://topics.example:4000"}
