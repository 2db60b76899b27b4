"""A server that the tests of the clients share, and a name for each test."""

from collections.abc import Iterator
from itertools import count

import pytest

from tests.conftest import ServerProcess

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("client"), {})
    yield running
    running.stop()


@pytest.fixture
def name() -> str:
    """A topic that no other test uses."""
    return f"t{next(_numbers)}"
