"""SIGHUP: the key file is read again, and a file that cannot be used changes nothing."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import websockets

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import eventually


def events(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, server.log().splitlines()) if line["event"] == name]


def reload(server: ServerProcess, name: str) -> dict[str, Any]:
    """Send SIGHUP, and return the next log line with the name."""
    before = len(events(server, name))
    os.kill(server.process.pid, signal.SIGHUP)
    return eventually(lambda: events(server, name), lambda found: len(found) > before)[-1]


def status(server: ServerProcess, key: str, method: str = "GET", path: str = "/v0/topics", **options: Any) -> int:
    return httpx.request(method, server.url + path, headers={"authorization": f"Bearer {key}"}, **options).status_code


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text("one:read\ntwo:read+write\n")
    return file


def test_hangup_reads_the_key_file_again(start_server: StartServer, keys: Path):
    server = start_server(api_keys="fixed:read", api_keys_file=keys)
    assert status(server, "two", "POST", "/v0/topics/t", json={"records": [{"data": 1}]}) == 201
    two = {"authorization": "Bearer two"}
    session = httpx.post(server.url + "/v0/watch", json={"topics": {"t": {}}}, headers=two).json()
    keys.write_text("three\ntwo:read+write\n")
    assert reload(server, "keys_reloaded")["keys"] == 3
    assert [status(server, key) for key in ("fixed", "one", "two", "three")] == [200, 401, 200, 200]
    assert status(server, "three", "DELETE", "/v0/topics/none") == 200, "the new key has its scopes"
    with httpx.stream("GET", server.url + session["stream_url"], headers=two) as stream:
        assert stream.status_code == 200, "an unchanged key keeps its sessions"


@pytest.mark.parametrize("content", ["", "one:wite\n", "one\none:read\n", "fixed\n", None])
def test_key_file_that_cannot_be_used_changes_nothing(start_server: StartServer, keys: Path, content: str | None):
    server = start_server(api_keys="fixed:read", api_keys_file=keys)
    keys.unlink()
    if content is not None:
        keys.write_text(content)
    refused = reload(server, "keys_refused")
    assert refused["hint"] == "the server continues with the old keys"
    assert "wite" not in refused["reason"]
    assert [status(server, key) for key in ("fixed", "one", "two")] == [200, 200, 200]
    server.kill()  # a refused file is logged as an error, which `stop` would report


@pytest.mark.parametrize("broken", ["keys", "token-keys"])
def test_one_file_that_cannot_be_used_keeps_the_other_as_it_was(start_server: StartServer, keys: Path, broken: str):
    secrets = keys.with_name("token-keys")
    secrets.write_text("0" * 32)
    server = start_server(api_keys_file=keys, token_keys_file=secrets)
    made = jwt.encode(
        {"aud": "topics", "iat": time.time(), "exp": time.time() + 600, "topics": {"scopes": ["read"]}}, "0" * 32
    )
    os.kill(server.process.pid, signal.SIGSTOP)  # it sees both changes at once
    keys.write_text("three:wite" if broken == "keys" else "three")
    secrets.write_text("short" if broken == "token-keys" else "f" * 32)
    os.kill(server.process.pid, signal.SIGHUP)
    os.kill(server.process.pid, signal.SIGCONT)
    refused = eventually(lambda: events(server, "keys_refused"), bool)[0]
    assert "short" not in refused["reason"]
    assert [status(server, key) for key in ("one", "two", "three", made)] == [200, 200, 401, 200]
    server.kill()  # a refused file is logged as an error, which `stop` would report


def test_websocket_of_a_removed_key_is_closed(start_server: StartServer, keys: Path):
    server = start_server(api_keys_file=keys)
    publish = json.dumps({"op": "publish", "topic": "t", "records": [{"data": 1}]})

    async def talk() -> list[Any]:
        url = f"ws://127.0.0.1:{server.port}/v0/ws"
        async with websockets.connect(url, additional_headers={"authorization": "Bearer two"}) as socket:
            await socket.send(publish)
            first = json.loads(await socket.recv())
            keys.write_text("one:read\n")
            await asyncio.to_thread(reload, server, "keys_reloaded")
            return [first, json.loads(await socket.recv())]

    first, second = asyncio.run(talk())
    assert first["op"] != "error", first
    assert (second["op"], second["code"]) == ("error", "unauthorized")
