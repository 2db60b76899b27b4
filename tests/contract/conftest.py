import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def session_api(live: ServerProcess) -> Iterator[Api]:
    client = Api(live.url)
    yield client
    client.close()


@pytest.fixture
def api(session_api: Api) -> Api:
    """The shared servers, in turn."""
    return session_api


@pytest.fixture(scope="module")
def disk_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for tests that do not depend on storage."""
    directory = tmp_path_factory.mktemp("module")
    server = ServerProcess(directory, {"data_dir": directory / "data"})
    client = Api(server.url)
    yield client
    client.close()
    server.stop()


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def connect() -> Iterator[Callable[[ServerProcess], Api]]:
    """Clients for servers that a test starts."""
    clients: list[Api] = []

    def open_client(server: ServerProcess) -> Api:
        clients.append(Api(server.url))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()
