"""Fixtures that start real server processes."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import profile
from tests.forks import Forked, template

profile.load()

pytest_plugins = ["pytester"]

WAIT_S = 20

# An object store without settings would be looked for at the metadata address of a cloud. Tests use this machine only.
os.environ["AWS_EC2_METADATA_DISABLED"] = "true"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run all tests with the Spark session in one worker: a session takes seconds to start and a gigabyte.

    With several workers they come first: they take the longest. Tests that start processes with sessions of their own
    go one after the other, wherever there is room.
    """
    sharing = []
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            shares = "spark" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("spark" if shares else "spark-processes"))
            sharing += [item] if shares else []
    if hasattr(config, "workerinput"):
        first = set(sharing)
        items[:] = sharing + [item for item in items if item not in first]


class ServerProcess:
    """`topics serve` in its own process, on a free port. Settings are `TOPICS_*` variables without the prefix.

    A server of a test never answers that it is overloaded, unless the test sets `pressure_lag_ms`: the machine may be.

    The process is a fork (see `tests/forks.py`), unless it needs an interpreter of its own: `ulimit`, `program`,
    `variables` or `fork=False`. `ulimit` has the arguments of the shell command of that name, such as "-n 300".
    """

    def __init__(
        self,
        directory: Path,
        settings: dict[str, object],
        *,
        wait_ready: bool = True,
        ulimit: str = "",
        program: Sequence[str] = (),
        variables: dict[str, str] | None = None,
        fork: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log_path = directory / "log"
        self.killed = self._stopping = False
        port_file = directory / "port"
        port_file.unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        settings = {"pressure_lag_ms": 0} | settings
        env |= {f"TOPICS_{name.upper()}": str(value) for name, value in settings.items()}
        env |= {"TOPICS_PORT_FILE": str(port_file), "TOPICS_LOG_FORMAT": "json"} | (variables or {})
        with self._log_path.open("ab") as log, open(os.devnull, "r+b") as null:
            files = (null.fileno(), null.fileno(), log.fileno())
            self.process: subprocess.Popen[bytes] | Forked
            if fork and not (ulimit or program or variables):
                self.process = template().start(["topics", "serve", "--port", "0"], env, *files)
            else:
                command = [sys.executable, *(program or ("-m", "topics", "serve")), "--port", "0"]
                if ulimit:
                    command = ["sh", "-c", f'ulimit {ulimit} && exec "$@"', "sh", *command]
                stdin, stdout, stderr = files
                self.process = subprocess.Popen(command, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        self.port = int(self._wait_for(lambda: port_file.exists() and port_file.read_text().strip()))
        self.url = f"http://127.0.0.1:{self.port}"
        if wait_ready:
            self.wait_ready()

    def wait_ready(self) -> None:
        self._wait_for(self._is_ready)

    def _wait_for(self, look: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + WAIT_S
        while not (seen := look()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the server did not start:\n{self.log()}")
            time.sleep(0.01)
        return seen

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("GET", "/v0/ready")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def terminate(self) -> None:
        """Send SIGTERM once and return at once."""
        if not self._stopping:
            self._stopping = True
            self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process. `stop` then checks nothing."""
        self.killed = True
        self.process.kill()
        self.process.wait(WAIT_S)

    def stop(self) -> None:
        """Stop the server. Check its exit status and that it logged no errors."""
        if self.killed:
            return
        if self.process.poll() is None:
            self.terminate()
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop:\n{self.log()}") from None
        assert status == 0, f"exit status {status}:\n{self.log()}"
        failures = [line for line in self.log().splitlines() if _is_failure(line)]
        assert not failures, "\n".join(failures)


def _is_failure(line: str) -> bool:
    """Return tracebacks, lines that are not log lines, and errors."""
    try:
        entry = json.loads(line)
    except ValueError:
        return True
    return entry["level"] in ("error", "critical")


Counts = Callable[..., None]


@pytest.fixture
def counts(record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]) -> Counts:
    """Report what a long test did: `counts("in pairs", crash_points=812)`. `make torture` adds the numbers up."""

    def report(where: str = "", **numbers: int) -> None:
        record_property("counts", numbers)
        with capsys.disabled():
            reported = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in numbers.items())
            print(f"\n{reported} {where}".rstrip())

    return report


StartServer = Callable[..., ServerProcess]


# Segments and WAL files are small, so that most records of a test are sealed, checkpointed and read from disk.
SMALL_PARTS = {
    "segment_max_events": 16,
    "segment_max_bytes": 4096,
    "segment_max_age_ms": 100,
    "wal_file_bytes": 65_536,
    "checkpoint_wal_bytes": 65_536,
    "checkpoint_interval_ms": 100,
    "sync_interval_ms": 10,  # an idle server with 1 would take a twentieth of a core
}


@pytest.fixture(scope="session", params=["memory", "disk", "sealed"])
def live(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The shared servers: without a data directory, with one, and with one that has small segments."""
    directory = tmp_path_factory.mktemp("live")
    settings: dict[str, object] = {}
    if request.param != "memory":
        settings["data_dir"] = directory / "data"
    if request.param == "sealed":
        settings |= SMALL_PARTS
    server = ServerProcess(directory, settings)
    yield server
    server.stop()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers with their own settings, `start_server(max_topics=2)`. Stop and check them at the end."""
    running: list[ServerProcess] = []

    def start(*, ulimit: str = "", wait_ready: bool = True, **settings: object) -> ServerProcess:
        server = ServerProcess(tmp_path / f"server{len(running)}", settings, ulimit=ulimit, wait_ready=wait_ready)
        running.append(server)
        return server

    yield start
    for server in running:
        server.stop()
