"""Servers under test: topics, Redis, NATS and the floor. Each runs on a free loopback port and is ended by its pid."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jetstream
import resp
from api import Api
from plan import HERE, Plan

START_LIMIT_S = 900.0  # a million topics on a busy machine
STOP_LIMIT_S = 300.0
POLL_S = 0.002
IDLE_LIMIT_S = 5.0
IDLE_FOR_S = 0.05
IDLE_SHARE = 0.05
REST_S, REST_LIMIT_S = 0.5, 10.0
REST_BYTES = 1 << 18
LOG_TAIL = 500


class Server:
    """A running process, its port, and the seconds from its start until it was ready."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log
        self.port = 0
        self.ready_s = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """End the process with SIGKILL, without a clean stop."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(STOP_LIMIT_S)

    def stop(self) -> None:
        """End the process with SIGTERM, and with SIGKILL if it does not end in time."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_until_idle(self) -> None:
        """Wait until the process is nearly idle, or until the time limit."""
        until = time.perf_counter() + IDLE_LIMIT_S
        while time.perf_counter() < until:
            before = cpu_s(self.pid)
            time.sleep(IDLE_FOR_S)
            if cpu_s(self.pid) - before < IDLE_FOR_S * IDLE_SHARE:
                return

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:] if self.log.exists() else ""


def cpu_s(pid: int) -> float:
    """Return the processor time of a process: in nanoseconds if the kernel counts them, else in ticks."""
    try:
        used_ns = sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    except OSError:
        used_ns = 0  # a thread ended between the listing and the reading
    if used_ns:
        return used_ns / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_s(pid: int) -> float:
    """Return how long the main thread of a process was ready to run and had no core."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def resident_bytes(pid: int) -> tuple[int, int]:
    """Return the resident memory of a process, and the part that is not backed by a file."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes_kib = {parts[0]: int(parts[1]) for parts in (line.split() for line in rollup[1:])}
    return sizes_kib["Rss:"] * 1024, sizes_kib["Anonymous:"] * 1024


def memory_at_rest(pid: int) -> tuple[int, int]:
    """Return the resident memory after background work has finished changing it."""
    deadline = time.monotonic() + REST_LIMIT_S
    last = resident_bytes(pid)
    while time.monotonic() < deadline:
        time.sleep(REST_S)
        now = resident_bytes(pid)
        if abs(now[0] - last[0]) < REST_BYTES:
            return now
        last = now
    return last


def disk_bytes(data_dir: Path) -> int:
    """Return the space of the files after a clean stop, in whole blocks. The log then has only space for later writes,
    one file or two."""
    files = (path for path in data_dir.rglob("*") if path.parent.name != "wal")
    return sum(path.stat().st_blocks * 512 for path in files)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _spawn(plan: Plan, command: list[str], log: Path, env: dict[str, str] | None = None) -> Server:
    with log.open("wb") as out:
        process = subprocess.Popen(plan.pin_server(command), stdout=out, stderr=subprocess.STDOUT, env=env)
    return Server(process, log)


def _wait_until(server: Server, ready: Callable[[], bool], started: float) -> None:
    """Poll until the server is ready. If it does not become ready, end it and raise."""
    try:
        while not ready():
            if server.process.poll() is not None:
                raise RuntimeError(f"a server ended while it started:\n{server.tail()}")
            if time.perf_counter() - started > START_LIMIT_S:
                raise RuntimeError(f"a server was not ready in {START_LIMIT_S:g} s:\n{server.tail()}")
            time.sleep(POLL_S)
    except BaseException:
        server.kill()
        raise
    server.ready_s = time.perf_counter() - started


def start_topics(plan: Plan, data_dir: Path | None, **settings: str) -> Server:
    """Start a topics server and wait until it is ready. Without a data directory it keeps everything in memory."""
    port_file = plan.work_dir / f"port-{free_port()}"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    # An installed server has bytecode; without it a start compiles the package.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {"TOPICS_PORT_FILE": str(port_file), **settings}
    if data_dir is not None:
        env["TOPICS_DATA_DIR"] = str(data_dir)
    started = time.perf_counter()
    server = _spawn(plan, list(plan.server_command), plan.work_dir / f"{port_file.name}.log", env)

    def ready() -> bool:
        if not server.port and port_file.exists():
            server.port = int(port_file.read_text() or 0)
        return bool(server.port) and Api(server.port).is_ready()

    _wait_until(server, ready, started)
    port_file.unlink()
    return server


@contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Run an S3 API on this machine. Yield the settings of a server whose replica is in it."""
    port, log = free_port(), folder / "object-store.log"
    with log.open("wb") as out:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        store = Server(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT), log)

    def has_bucket() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("PUT", "/bench")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    with running(store):
        _wait_until(store, has_bucket, time.perf_counter())
        yield {
            "TOPICS_REPLICA": "s3://bench/replica", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any",
        }  # fmt: skip


def start_redis(plan: Plan, data_dir: Path, *, appendfsync: str | None) -> Server:
    """Start Redis with an append-only file, or without one if `appendfsync` is None. Rewrites of the file are disabled,
    because one would cost time during a round."""
    port = free_port()
    log = ["--appendonly", "yes", "--appendfsync", appendfsync] if appendfsync else ["--appendonly", "no"]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data_dir), "--save", ""]
    started = time.perf_counter()
    command += [*log, "--auto-aof-rewrite-percentage", "0"]
    server = _spawn(plan, command, plan.work_dir / f"redis-{port}.log")
    server.port = port
    _wait_until(server, lambda: resp.is_ready(port), started)
    return server


def start_nats(plan: Plan, data_dir: Path) -> Server:
    """Start nats-server with JetStream, which syncs its files once a second, as Redis does. A ping during a round would
    only disturb the readers of the answers."""
    port = free_port()
    config = data_dir / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\nping_interval: "10m"\n'
        f'jetstream {{ store_dir: "{data_dir}", sync_interval: "1s" }}\n'
    )
    started = time.perf_counter()
    server = _spawn(plan, ["nats-server", "-c", str(config)], plan.work_dir / f"nats-{port}.log")
    server.port = port
    _wait_until(server, lambda: jetstream.is_ready(port), started)
    return server


def start_floor(plan: Plan, body_bytes: int, spread_bytes: int = 0) -> Server:
    port = free_port()
    command = [sys.executable, str(HERE / "floor.py"), str(port), str(body_bytes), str(spread_bytes)]
    started = time.perf_counter()
    server = _spawn(plan, command, plan.work_dir / f"floor-{port}.log")
    server.port = port
    _wait_until(server, Api(port).is_ready, started)
    return server


def start_relay(plan: Plan, file: Path) -> Server:
    """Start the floor of the latencies, which syncs writes in `file`."""
    port = free_port()
    started = time.perf_counter()
    server = _spawn(plan, [sys.executable, str(HERE / "relay.py"), str(port), str(file)], plan.work_dir / "relay.log")
    server.port = port
    _wait_until(server, Api(port).is_ready, started)
    return server


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """End the process at the end of the block. An exception gets the end of the process's log."""
    try:
        yield server
    except Exception as problem:
        problem.add_note(server.tail())
        raise
    finally:
        server.kill()
