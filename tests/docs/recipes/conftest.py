"""A server on a disk behind an address that stays, and the programs of a recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import ServerProcess
from tests.docs.programs import WAIT_S, Programs
from topics.client import Topics

T = TypeVar("T")


class Kitchen:
    """A server behind an address, and a directory for the programs of a recipe."""

    def __init__(self, directory: Path, settings: dict[str, object]) -> None:
        self._directory = directory
        self._settings = {"data_dir": directory / "data"} | settings
        self.here = directory
        self.server = self._start()
        self.address = CuttingProxy(lambda: self.server.port, seed=1, cut_one_in=1 << 30)  # cuts nothing

    def _start(self) -> ServerProcess:
        return ServerProcess(self._directory / "server", self._settings)

    def kill_server(self) -> None:
        """Kill the server, and start it again. Its address stays the same."""
        self.server.kill()
        self.server = self._start()

    def programs(self, recipe: str, real: dict[str, str] | None = None) -> Programs:
        """Write the programs of a page. `real` has words of the page and what replaces them, such as shorter delays."""
        return Programs(f"recipes/{recipe}.md", self.here, {"http://127.0.0.1:4000": self.address.url} | (real or {}))

    @property
    def data_dir(self) -> Path:
        return self._directory / "data"


OpenKitchen = Callable[..., Kitchen]


@contextmanager
def opened(directory: Path, settings: dict[str, object]) -> Iterator[Kitchen]:
    kitchen = Kitchen(directory, settings)
    with kitchen.address:
        yield kitchen
    kitchen.server.stop()


@pytest.fixture
def open_kitchen(tmp_path: Path) -> Iterator[OpenKitchen]:
    """Start the server of a recipe with settings of its own."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(opened(tmp_path, settings))


@pytest.fixture(scope="session")
def shared_kitchen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kitchen]:
    with opened(tmp_path_factory.mktemp("kitchen"), {}) as kitchen:
        yield kitchen


@pytest.fixture
def kitchen(shared_kitchen: Kitchen, tmp_path: Path) -> Iterator[Kitchen]:
    """The server that most recipes share, without topics, and an empty directory."""
    shared_kitchen.here = tmp_path
    yield shared_kitchen
    with Topics(shared_kitchen.address.url) as client:
        for row in list(client.topics()):
            client.drop_topic(row.topic)


@pytest.fixture
def topics(kitchen: Kitchen) -> Iterator[Topics]:
    with Topics(kitchen.address.url) as client:
        yield client


def wait_for(look: Callable[[], T | None]) -> T:
    """Return what `look` finds, once it finds something."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found
