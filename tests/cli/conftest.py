"""One server for all commands of a module, and a user of it."""

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import Cli
from tests.conftest import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("cli-server")
    running = ServerProcess(directory, {"data_dir": directory / "data"})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def cli(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Cli:
    return Cli(tmp_path_factory.mktemp("home"), server.url)


@pytest.fixture
def api(server: ServerProcess) -> Callable[..., Any]:
    """Send a request to the server and return its answer."""
    return lambda method, path, body=None: call(server.port, method, path, body)


def call(port: int, method: str, path: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


@pytest.fixture
def home(tmp_path: Path) -> Cli:
    """A user without a server."""
    return Cli(tmp_path / "home")
