"""Processes that tests start and end: Spark applications, clusters, and servers that come back on the same port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark

from tests.spark.conftest import QUICK_JAVA
from topics.client import Client
from topics.errors import TopicsError
from topics.spark import jvm

ROOT = Path(__file__).parents[2]
WAIT_S = 400  # a crowded machine is no failure


def wait_for(look: Callable[[], Any], what: str, *, every_s: float = 0.05) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (seen := look()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(every_s)
    return seen


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """A process and all that it starts, which end together."""

    def __init__(self, command: list[str], log: Path, **env: str | None) -> None:
        """Start the command with these variables; None removes one."""
        self._log = log
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        ours = {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,
        }
        given = {name: value for name, value in (kept | ours | env).items() if value is not None}
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=given,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """Ends it and its children at once, as a machine that loses power does."""
        if self.process.poll() is None or children(self.pid):
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def succeed(self) -> None:
        status = self.process.wait(WAIT_S)
        assert status == 0, f"exit status {status}:\n{self.log()[-6000:]}"


def children(pid: int) -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has just ended
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        more = parents.get(waiting.pop(), [])
        found += more
        waiting += more
    return found


def running(pid: int, words: str) -> list[int]:
    """Return the descendants of a process whose command line contains these words."""
    found = []
    for child in children(pid):
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(child)
    return found


def slim_home() -> str:
    """Return a Spark home without the zip of PySpark, which has no bytecode: workers import the installed package."""
    installed = Path(pyspark.__file__).parent
    home = jvm.cache_folder("spark") / f"tests-{zlib.crc32(str(installed).encode()):08x}"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "conf", "jars", "sbin"):
        if (installed / name).is_dir() and not (home / name).exists():
            with suppress(FileExistsError):  # another process is doing the same
                (home / name).symlink_to(installed / name)
    return str(home)


def application(log: Path, *arguments: object, **env: str | None) -> Process:
    """`tests.spark.driver`, in a process of its own."""
    command = [sys.executable, "-m", "tests.spark.driver", *map(str, arguments)]
    return Process(command, log, SPARK_HOME=slim_home(), **env)


class Server:
    """`topics serve` on a port that stays the same when it is started again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "topics", "serve", "--port", str(self.port)]
        self._process = Process(command, self._directory / "server.log", TOPICS_DATA_DIR=str(self._directory / "data"))
        wait_for(self._listens, "the server")

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.kill()


class Cluster:
    """A standalone cluster on loopback: one master, two workers of one core."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._home = slim_home()
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self.processes = [self._start("master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0")]
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> None:
        number = len(self.processes)
        folder = self._directory / f"work{number}"
        settings = ("--webui-port", "0", "--cores", "1", "--memory", "1g", "--work-dir", str(folder))
        self.processes.append(self._start("worker.Worker", "--host", "127.0.0.1", *settings, self.url))

    def kill_worker(self) -> None:
        """Kill the first worker that runs, with its executors."""
        next(worker for worker in self.processes[1:] if worker.is_alive()).kill()

    def _start(self, what: str, *arguments: str) -> Process:
        command = [f"{self._home}/bin/spark-class", f"org.apache.spark.deploy.{what}", *arguments]
        log = self._directory / f"{what}-{len(list(self._directory.glob('*.log')))}.log"
        return Process(command, log, SPARK_HOME=self._home, SPARK_DAEMON_MEMORY="256m", SPARK_NO_DAEMONIZE="1")

    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        return [pid for worker in self.processes[1:] for pid in running(worker.pid, "CoarseGrainedExecutorBackend")]

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()


def reached(client: Client, driver: Process, topic: str, heads: range, *, batch: int) -> None:
    """The head of the topic lies in there, and the application is in the middle of a batch of this size."""

    def look() -> bool:
        assert driver.is_alive(), driver.log()[-6000:]
        try:
            head = client.topic(topic).head_seq
        except TopicsError:
            return False
        assert head < heads.stop, "it was over before anything could be killed"
        return head > heads.start and (batch == 1 or head % batch != 0)

    wait_for(look, f"{heads.start} records", every_s=0.005)
