"""A local Spark that keeps running between commands: `topics spark start`.

It is a Spark Connect server in a process of its own, bound to loopback, with a token that only the user can read. Each
command takes one of its sessions: one that was used before answers its first query faster than a new one. A command
holds the lock of its session, so two commands at the same time never share temporary views. When a command has ended,
the process takes the lock and interrupts what a killed command has left running; a command that takes the lock first
does the same. The process ends when no session was held and no job ran for the idle time.

    warm.lock        held by the process for as long as it runs: the rest is valid only while it is
    warm.json        `State`: where it listens, its token, and what it was started with
    session-N.lock   held by the command that uses session N; not empty until its jobs are interrupted
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from topics import __version__
from topics.installation import is_installed
from topics.lake.storage import SETTINGS
from topics.spark.failures import Failed
from topics.spark.jvm import SESSION, SHOWN_LINES, cache_folder, quiet_start
from topics.storage.fs import Fs, Lock, LockHeld

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS = "starting Spark: 10 to 30 seconds"
STARTING = f"{STARTS}; `topics spark start` saves them for the next commands"
IDLE_S = 1800.0
START_LIMIT_S = 180.0
STOP_LIMIT_S = 30.0
INTERRUPT_LIMIT = '{"methodConfig":[{"name":[{}],"timeout":"10s"}]}'  # of gRPC: the time of one request
SESSIONS = 8  # most commands at the same time
LOOK_S = 0.2
TRIES = 10
STORES = ("AWS_", "AZURE_", "GOOGLE_", SETTINGS)  # settings of object stores in the environment


class State(Struct, kw_only=True):
    """What the file says about the running Spark."""

    pid: int
    port: int
    token: str
    master: str
    idle_s: float
    started_ms: int
    made_of: str  # versions and Python: a command of another installation does not use it
    environment: str  # a digest of the settings of object stores, which its executors have from the environment

    @property
    def is_ours(self) -> bool:
        return self.made_of == _made_of()

    @property
    def has_our_stores(self) -> bool:
        return self.environment == _environment()


def folder() -> Path:
    """Return the folder of the files. Only the user can read it."""
    found = cache_folder("warm")
    found.mkdir(parents=True, exist_ok=True, mode=0o700)
    found.chmod(0o700)
    return found


def running() -> State | None:
    """Return the Spark that runs, or None."""
    if not _is_held("warm.lock"):
        return None
    try:
        return msgspec.json.decode((folder() / "warm.json").read_bytes(), type=State)
    except (OSError, msgspec.DecodeError):
        return None  # it is starting or ending


def usable() -> State | None:
    """Return the Spark that runs if a command of this installation and environment can use it."""
    if not is_installed("pyspark"):
        return None
    state = running()
    return state if state is not None and state.is_ours and state.has_our_stores else None


def connect(state: State, app: str) -> SparkSession | None:
    """Return a session of the running Spark, or None if all are in use.

    The session belongs to this process until it ends. Do not stop it: the next command uses it again.
    """
    number = _take_session()
    if number is None:
        return None
    from pyspark.sql import SparkSession

    builder: SparkSession.Builder = SparkSession.builder
    session = builder.remote(f"{_url(state, number)};user_agent={app.replace(' ', '-')}").getOrCreate()
    session.interruptAll()
    return session


def _url(state: State, number: int) -> str:
    """Return the address of a session. A channel to "localhost" may send a token without TLS."""
    key = uuid.uuid5(uuid.NAMESPACE_OID, f"{state.token} {number}")
    return f"sc://localhost:{state.port}/;token={state.token};user_id=topics;session_id={key}"


_held: list[Lock] = []  # those that this process keeps until it ends


def _take_session() -> int | None:
    for number in range(SESSIONS):
        if (lock := _lock(f"session-{number}.lock")) is not None:
            _held.append(lock)
            return number
    return None


def start(*, idle_s: float = IDLE_S, master: str = "local[*]", step: Callable[[str], None] = print) -> State:
    """Start Spark in the background, and return it once it answers. Return the running one if there is one."""
    if (state := running()) is not None:
        return state
    step(STARTS)
    log = folder() / "warm.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "topics.spark.warm", master, str(idle_s)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, cwd="/",
        )  # fmt: skip
    deadline_s = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline_s:
        if (state := running()) is not None:
            process.returncode = 0  # it goes on without this process, which must not wait for it
            return state
        if process.poll() is not None:
            break
        time.sleep(LOOK_S)
    else:
        process.terminate()
    said = log.read_text(errors="replace").splitlines()[-SHOWN_LINES:]
    raise Failed("\n  ".join(["Spark did not start:", *said]))


def stop() -> State | None:
    """End the running Spark, and return what it was. Jobs that run on it fail. Return None if none runs."""
    state = running()
    if state is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(state.pid, signal.SIGTERM)
    deadline_s = time.monotonic() + STOP_LIMIT_S
    while running() is not None:
        if time.monotonic() > deadline_s:
            os.kill(state.pid, signal.SIGKILL)
            break
        time.sleep(LOOK_S)
    return state


def sessions_in_use() -> int:
    """Return how many commands use the running Spark."""
    return sum(_is_held(path.name) for path in folder().glob("session-*.lock"))


# --- the process


def serve(master: str, idle_s: float) -> int:
    """Run Spark until it is idle for so long or gets SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    for _ in range(TRIES):
        if lock := _lock("warm.lock"):
            break
        ended.wait(LOOK_S)  # `running` holds it for a moment
    if lock is None or ended.is_set():
        return 0  # another one was quicker
    (folder() / "warm.json").unlink(missing_ok=True)
    token = secrets.token_urlsafe(24)
    port = _free_port()
    from topics.spark.spark_session import session

    os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] = token  # not in the settings, which every session may read
    with quiet_start():
        spark = session(
            "topics", master=master,
            config=SESSION | {
                "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": str(port),
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
            },
        )  # fmt: skip
    state = State(
        pid=os.getpid(), port=port, token=token, master=master, idle_s=idle_s, started_ms=time.time_ns() // 1_000_000,
        made_of=_made_of(), environment=_environment(),
    )  # fmt: skip
    (folder() / "warm.json").touch(mode=0o600)
    (folder() / "warm.json").write_bytes(msgspec.json.encode(state))  # a part of it counts as none
    used_s = time.monotonic()
    while not ended.wait(1.0):
        interrupt_ended(partial(_interrupt, state))
        if sessions_in_use() or spark.sparkContext.statusTracker().getActiveJobsIds():
            used_s = time.monotonic()
        elif time.monotonic() - used_s > idle_s:
            break
    (folder() / "warm.json").unlink(missing_ok=True)
    with suppress(Exception):
        spark.stop()
    return 0


def interrupt_ended(interrupt: Callable[[int], None]) -> None:
    """Call `interrupt` for each session whose command has ended. No command can take the session meanwhile.

    A closed lock has an empty file, so an interrupt that fails is repeated at the next call.
    """
    for path in folder().glob("session-*.lock"):
        if not path.stat().st_size or (lock := _lock(path.name)) is None:
            continue
        try:
            interrupt(int(path.stem.removeprefix("session-")))
        except Exception:
            lock.release()
        else:
            lock.close()


def _interrupt(state: State, number: int) -> None:
    from pyspark.sql.connect.client import SparkConnectClient

    client = SparkConnectClient(
        _url(state, number), channel_options=[("grpc.service_config", INTERRUPT_LIMIT)], retry_policy={"max_retries": 0}
    )
    with closing(client):
        client.interrupt_all()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _made_of() -> str:
    return f"{__version__} {version('pyspark')} {sys.executable}"


def _environment() -> str:
    settings = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(STORES))
    return hashlib.sha256("\n".join(settings).encode()).hexdigest()[:16]


def _lock(name: str) -> Lock | None:
    """Take a lock until this process ends. Return None if another process holds it."""
    with suppress(LockHeld):
        return Fs().lock(str(folder() / name))
    return None


def _is_held(name: str) -> bool:
    """Return whether a process holds the lock."""
    try:
        Fs().lock_shared(str(folder() / name)).close()
    except FileNotFoundError:
        return False
    except LockHeld:
        return True
    return False


if __name__ == "__main__":
    sys.exit(serve(sys.argv[1], float(sys.argv[2])))
