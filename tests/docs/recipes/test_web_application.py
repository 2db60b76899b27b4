"""docs/recipes/web-application.md: SIGTERM ends the application after the worker has finished its job."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.docs.programs import WAIT_S
from tests.docs.recipes.conftest import Kitchen, Receiver, wait_for
from topics.client import Topics

RUN = "topics.run(handle_signals=False)"


class Application:
    """An application in a process of uvicorn."""

    def __init__(self, name: str, directory: Path) -> None:
        self._log = directory / "uvicorn.log"
        command = [sys.executable, "-m", "uvicorn", f"{name}:app", "--port", "0", "--lifespan", "on"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=directory, stderr=log, stdout=log)

    @property
    def url(self) -> str:
        return self.logged(r"Uvicorn running on (\S+)")

    def logged(self, pattern: str) -> str:
        """Wait for a line of the log, and return the first group of the pattern."""

        def look() -> re.Match[str] | None:
            found = re.search(pattern, self._log.read_text())
            assert found or self.process.poll() is None, self._log.read_text()
            return found

        return wait_for(look)[1]


@contextmanager
def started(name: str, directory: Path) -> Iterator[Application]:
    application = Application(name, directory)
    try:
        yield application
    finally:
        application.process.kill()
        application.process.wait(WAIT_S)


LONG = pytest.mark.torture  # the client knows nothing of the framework: one of them is enough for `make test`


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("with_fastapi", RUN),
        ("with_starlette", RUN),
        ("with_django", RUN),
        ("with_fastapi", "topics.run()"),
        pytest.param("with_starlette", "topics.run()", marks=LONG),
        pytest.param("with_django", "topics.run()", marks=LONG),
    ],
)
def test_sigterm_ends_the_application_after_its_jobs(
    name: str, run: str, kitchen: Kitchen, topics: Topics, receiver: Receiver
) -> None:
    programs = kitchen.programs("web-application", {"http://127.0.0.1:9000/mail": receiver.url("/slow"), RUN: run})
    with started(name, programs.directory) as application:
        assert httpx.post(f"{application.url}/signups", params={"to": "ada"}).json() == {"job": 1}
        wait_for(lambda: receiver.got)
        application.process.send_signal(signal.SIGTERM)
        application.logged("(Waiting for application shutdown)")
        assert topics.topic("emails").queue.in_flight == 1  # type: ignore[union-attr]
        assert application.process.poll() is None, "the job is not finished yet"
        receiver.go_on.set()
        assert application.process.wait(WAIT_S) == -signal.SIGTERM  # uvicorn repeats the signal at its end
        application.logged("(Application shutdown complete)")
    assert topics.topic("emails").count == 0
    assert [body for _, _, body in receiver.got] == [{"to": "ada"}]


def test_application_ends_if_its_worker_fails(kitchen: Kitchen, topics: Topics, receiver: Receiver) -> None:
    programs = kitchen.programs("web-application")
    with started("with_starlette", programs.directory) as application:
        assert application.url
        topics.drop_topic("emails")
        application.logged("(the worker has failed, so the application ends)")
        assert application.process.wait(WAIT_S) != 0
