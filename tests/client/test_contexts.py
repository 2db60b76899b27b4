"""A client without an address talks to the server that the command line would use."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from topics.client import Topics, errors


class Asked:
    """The address and the key of the last request of a client without arguments."""

    def __init__(self) -> None:
        self.url, self.key = "", ""
        with Topics(transport=httpx.MockTransport(self._answer)) as topics:
            topics.health()

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.url, self.key = str(request.url.copy_with(path="/")), request.headers.get("authorization", "")
        times = {"uptime_ms": 1, "performance": {"server_total_ms": 0.1}}
        return httpx.Response(200, json={"status": "ok", "version": "1", **times})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a user with the context `prod` and its key. No variable is set."""
    for name in ("TOPICS_URL", "TOPICS_CONTEXT", "TOPICS_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = tmp_path / "key"
    key.write_text("secret\n")
    write(
        tmp_path, {"current": "prod", "contexts": {"prod": {"url": "https://a:1,https://b:2", "token_file": str(key)}}}
    )
    return tmp_path


def write(home: Path, contexts: object) -> None:
    (home / "topics").mkdir(exist_ok=True)
    (home / "topics" / "contexts.json").write_text(json.dumps(contexts))


def test_current_context_gives_the_address_and_its_key(home: Path) -> None:
    asked = Asked()
    assert (asked.url, asked.key) == ("https://a:1/", "Bearer secret")


def test_variable_comes_before_the_context_and_does_not_get_its_key(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_URL", "localhost:4001")
    asked = Asked()
    assert (asked.url, asked.key) == ("http://localhost:4001/", "")
    (home / "other").write_text("mine")
    monkeypatch.setenv("TOPICS_TOKEN_FILE", str(home / "other"))
    assert Asked().key == "Bearer mine"


def test_address_of_the_call_gets_no_key_of_a_context(home: Path) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("authorization", ""))
        return httpx.Response(403, json={"error": {"code": "forbidden", "message": "no"}})

    with Topics("https://a:1", transport=httpx.MockTransport(answer)) as topics, pytest.raises(errors.Forbidden):
        topics.health()
    assert keys == [""]


def test_without_contexts_it_is_this_machine(home: Path) -> None:
    (home / "topics" / "contexts.json").unlink()
    assert Asked().url == "http://127.0.0.1:4000/"


def test_unknown_context_damaged_file_and_missing_key_are_errors(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "key").unlink()
    with pytest.raises(errors.BadContext, match=r"the key file .*key cannot be read"):
        Topics()
    monkeypatch.setenv("TOPICS_CONTEXT", "staging")
    with pytest.raises(errors.BadContext, match="there is no context 'staging'"):
        Topics()
    write(home, [])
    with pytest.raises(errors.BadContext, match=r"contexts\.json cannot be read"):
        Topics()
