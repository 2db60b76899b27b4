"""A server on a disk behind an address that stays, and the programs of a recipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.client.proxy import CuttingProxy
from tests.conftest import ServerProcess
from tests.docs.programs import WAIT_S, Programs
from topics.client import Topics

T = TypeVar("T")


class Kitchen:
    """A server, a client of it, and a directory for the programs of a recipe."""

    def __init__(self, directory: Path, settings: dict[str, object]) -> None:
        self._directory = directory
        self._settings = {"data_dir": directory / "data"} | settings
        self.here = directory / "here"
        self.here.mkdir()
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


@pytest.fixture
def open_kitchen(tmp_path: Path) -> Iterator[OpenKitchen]:
    """Start the server of a recipe with settings of its own."""
    opened: list[Kitchen] = []

    def start(**settings: object) -> Kitchen:
        opened.append(Kitchen(tmp_path, settings))
        opened[-1].address.__enter__()
        return opened[-1]

    yield start
    for kitchen in opened:
        kitchen.address.__exit__()
        kitchen.server.stop()


@pytest.fixture
def kitchen(open_kitchen: OpenKitchen) -> Kitchen:
    return open_kitchen()


@pytest.fixture
def topics(kitchen: Kitchen) -> Iterator[Topics]:
    with Topics(kitchen.address.url) as client:
        yield client


def wait_for(look: Callable[[], T | None]) -> T:
    """Return what `look` finds, once it finds something."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found
