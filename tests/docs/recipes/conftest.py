"""A server on a disk behind an address that stays, the programs of a recipe, and a receiver of their requests."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

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


class Receiver(http.server.ThreadingHTTPServer):
    """Takes webhooks: `/ok` succeeds, `/second` fails the first time, `/never` fails, `/slow` waits for `go_on`."""

    daemon_threads = True

    def __init__(self) -> None:
        receiver = self
        self.got: list[tuple[str, str, Any]] = []
        self.go_on = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                receiver.got.append((self.path, self.headers["idempotency-key"], body))
                if self.path == "/slow":
                    receiver.go_on.wait(WAIT_S)
                attempts = Counter(path for path, _, _ in receiver.got)[self.path]
                refused = self.path == "/never" or (self.path == "/second" and attempts == 1)
                self.send_response(500 if refused else 204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"

    def keys(self, path: str) -> list[str]:
        return [key for seen, key, _ in self.got if seen == path]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    serving = threading.Thread(target=made.serve_forever)
    serving.start()
    yield made
    made.go_on.set()
    made.shutdown()
    serving.join(WAIT_S)
    made.server_close()


def wait_for(look: Callable[[], T | None]) -> T:
    """Return what `look` finds, once it finds something."""
    deadline = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return found
