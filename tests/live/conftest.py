import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import SMALL_PARTS, ServerProcess
from tests.contract.api import Api
from tests.live.events import Events

_numbers = itertools.count(1)


class Live:
    """A server, a client that writes, and streams that are closed at the end."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.url = server.url
        self.api = Api(server.url)
        self._open: list[Events] = []

    def session(self, topics: Any, *, lenient: bool = False, **fields: Any) -> Any:
        if not isinstance(topics, dict):
            topics = {name: {} for name in topics.split()}
        path = "/v0/watch?lenient=true" if lenient else "/v0/watch"
        answer = self.api.call("POST", path, {"topics": topics} | fields)
        assert answer.is_success, answer.text
        return answer.json()

    def open(self, session: Any, **options: Any) -> Events:
        path = session if isinstance(session, str) else session["stream_url"]
        self._open.append(Events(self.url, path, **options))
        return self._open[-1]

    def watch(self, topics: Any, **fields: Any) -> Events:
        return self.open(self.session(topics, **fields))

    def metric(self, name: str) -> float:
        found = self.api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()[name]
        assert isinstance(found, int | float)
        return found

    def close(self) -> None:
        for events in self._open:
            events.close()
        self.api.close()


@pytest.fixture(scope="session", params=["memory", "sealed"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of most tests: in memory, with segments so small that most reads find a sealed one."""
    directory = tmp_path_factory.mktemp("live")
    small = {"data_dir": directory / "data"} | SMALL_PARTS
    server = ServerProcess(directory, small if request.param == "sealed" else {})
    yield server
    server.stop()


@pytest.fixture
def live(shared: ServerProcess) -> Iterator[Live]:
    client = Live(shared)
    yield client
    client.close()


@pytest.fixture
def start_live(start_server: Callable[..., ServerProcess]) -> Iterator[Callable[..., Live]]:
    """Start servers with given settings."""
    clients: list[Live] = []

    def start(**settings: object) -> Live:
        clients.append(Live(start_server(**settings)))
        return clients[-1]

    yield start
    for client in clients:
        client.close()


@pytest.fixture
def topic() -> str:
    return f"live{next(_numbers)}"
