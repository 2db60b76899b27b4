"""Contexts with several servers: each command goes to the server of the name that it is given."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import forks
from tests.conftest import ServerProcess
from topics.client import Topics

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    found = [ServerProcess(tmp_path / name, {"data_dir": tmp_path / name / "data"}) for name in ("eu", "us")]
    yield found
    for server in found:
        server.stop()


@pytest.fixture
def run(servers: list[ServerProcess], tmp_path: Path) -> Run:
    def topics(*words: str) -> subprocess.CompletedProcess[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        command = ["topics", *words]
        status, out, err = forks.run(command, env | {"XDG_CONFIG_HOME": str(tmp_path / "config")}, b"", 60)
        return subprocess.CompletedProcess(command, status, out.decode(), err.decode())

    eu, us = servers
    done = topics("context", "add", "world", "--route", f"eu.={eu.url}", "--route", f"us.={us.url}")
    assert done.returncode == 0, done.stderr
    return topics


def test_commands_go_to_the_server_of_the_name(run: Run, servers: list[ServerProcess]) -> None:
    for name in ("eu.orders", "us.orders"):
        assert run("append", name, "1", "--create").returncode == 0
        assert json.loads(run("read", name, "--json").stdout)["data"] == 1
    listed = [run("ls", "--json", "--url", server.url).stdout for server in servers]
    assert [[json.loads(line)["topic"] for line in text.splitlines()] for text in listed] == [
        ["eu.orders"],
        ["us.orders"],
    ]
    assert "eu.orders" in run("ls", "eu.*").stdout
    done = run("router", "create", "eu.copy", "--from", "eu.orders", "--to", "eu.copied")
    assert done.returncode == 0, done.stderr
    assert servers[1].url in run("read", "us.orders", "--curl").stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["ls"], "concerns one server"),
        (["read", "asia.orders"], "no server has 'asia.orders'"),
        (["router", "create", "eu.copy", "--from", "eu.orders", "--to", "us.copied"], "belongs to one"),
    ],
)
def test_what_cannot_span_servers_is_refused_with_the_next_step(run: Run, words: list[str], reason: str) -> None:
    done = run(*words)
    assert done.returncode == 2, done
    assert "context world has several servers" in done.stderr
    assert reason in done.stderr
    assert "name one server with --url, or with --context" in done.stderr


def test_route_without_an_address_is_refused_and_routes_are_listed(run: Run, servers: list[ServerProcess]) -> None:
    assert json.loads(run("context", "ls").stdout)["routes"]["eu."] == servers[0].url
    for words in (["--route", "eu."], []):
        done = run("context", "add", "other", *words)
        assert done.returncode == 2
        assert "a context needs an address" in done.stderr


def test_python_client_without_an_address_takes_the_routes(
    run: Run, servers: list[ServerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("TOPICS_URL", raising=False)
    with Topics() as topics:
        topics.append("us.orders", 1)
    with Topics(servers[1].url) as topics:
        assert topics.topic("us.orders").head_seq == 1
