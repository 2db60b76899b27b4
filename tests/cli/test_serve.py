"""`topics serve` as a process: settings, address, signals, drain, logs."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
import pytest

from tests import forks

PLAIN = ["python", str(Path(__file__).with_name("plain_server.py"))]
TOPICS = ["topics"]
WAIT_S = 20


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    return kept | extra


def finished(command: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    status, out, err = forks.run(command, environment(**env), b"", WAIT_S)
    return subprocess.CompletedProcess(command, status, out.decode(), err.decode())


class Process:
    """A server under test: its address and its exit."""

    def __init__(self, forked: forks.Forked, port: int, out: IO[bytes], err: IO[bytes]) -> None:
        self._forked = forked
        self._out, self._err = out, err
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def signal(self, number: signal.Signals) -> None:
        self._forked.send_signal(number)

    def ended(self) -> tuple[int, str, str]:
        return self._forked.wait(WAIT_S), printed(self._out), printed(self._err)

    def wait_for_event(self, name: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while name not in [event["event"] for event in events(printed(self._err))]:
            assert time.monotonic() < deadline, f"{name} was not logged"
            time.sleep(0.01)

    def get(self, path: str) -> socket.socket:
        """Send a request and return its connection, for answers that come during the drain."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S)
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        return sock


@contextlib.contextmanager
def serving(tmp_path: Path, *flags: str, command: list[str] = PLAIN, **env: str) -> Iterator[Process]:
    port_file = tmp_path / "port"
    variables = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file)} | env
    with open(os.devnull) as null, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = (null.fileno(), out.fileno(), err.fileno())
        forked = forks.template().start([*command, *flags], environment(**variables), *files)
        try:
            yield Process(forked, wait_for_port(port_file, forked, err), out, err)
        finally:
            forked.kill()
            forked.wait(WAIT_S)


def printed(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def wait_for_port(port_file: Path, forked: forks.Forked, err: IO[bytes]) -> int:
    deadline = time.monotonic() + WAIT_S
    while not port_file.exists():
        assert forked.poll() is None, printed(err)
        assert time.monotonic() < deadline, "the server did not listen in time"
        time.sleep(0.01)
    return int(port_file.read_text())


def wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + WAIT_S
    while client.get("/v0/ready").status_code != 200:
        assert time.monotonic() < deadline, "the server did not become ready in time"


def wait_for_drain(server: Process) -> None:
    """Wait until the server does not accept connections, the first step of a drain."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", server.port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError("the server still accepts connections")


def read_all(sock: socket.socket) -> bytes:
    with sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


def events(err: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in err.splitlines()]


# --- settings ---


def test_all_bad_settings_are_reported_together_with_exit_status_2():
    done = finished(
        [*TOPICS, "serve", "--max-limit", "0", "--log-level", "loud"], TOPICS_PORT="70000", TOPICS_HOST="0.0.0.0"
    )
    assert done.returncode == 2
    assert done.stdout == ""
    head, *problems = done.stderr.splitlines()
    assert head == "topics: 4 invalid settings"
    assert [line.split(":")[0].strip() for line in problems] == [
        "TOPICS_PORT",
        "--log-level",
        "--max-limit",
        "TOPICS_HOST",
    ]


def test_bad_key_setting_does_not_print_the_key(tmp_path: Path):
    done = finished([*TOPICS, "serve"], TOPICS_API_KEYS="s3cret", TOPICS_API_KEYS_FILE=str(tmp_path / "no"))
    assert done.returncode == 2
    assert "s3cret" not in done.stdout + done.stderr


def test_help_lists_every_flag():
    from topics.config import SETTINGS

    done = finished([*TOPICS, "serve", "--help"], COLUMNS="200")
    assert done.returncode == 0
    for row in SETTINGS:
        assert f"{row.flag} " in done.stdout
        assert row.variable in done.stdout


def test_version_and_the_settings_in_force_can_be_printed():
    from topics import __version__

    assert finished([*TOPICS, "version"]).stdout == f"{__version__}\n"
    shown = finished(
        [*TOPICS, "settings", "--port", "0"], TOPICS_API_KEYS="s3cret", TOPICS_PORT="5"
    ).stdout.splitlines()
    assert {"TOPICS_PORT=0", "TOPICS_API_KEYS=(hidden)", "TOPICS_MAX_BODY_BYTES=64MiB"} <= set(shown)


# --- address ---


def test_port_0_prints_and_writes_the_chosen_port(tmp_path: Path):
    with serving(tmp_path) as server:
        assert server.port > 0
        assert httpx.get(f"{server.url}/v0/health").json() == {"status": "ok"}
        assert [path.name for path in tmp_path.iterdir()] == ["port"]
        server.signal(signal.SIGTERM)
        code, out, _ = server.ended()
    assert code == 0
    assert f"listening on http://127.0.0.1:{server.port}\n" in out


def test_flag_overrides_its_variable(tmp_path: Path):
    with serving(tmp_path, "--port", "0", TOPICS_PORT="1") as server:
        assert httpx.get(f"{server.url}/v0/health").status_code == 200


def test_stale_port_file_is_removed(tmp_path: Path):
    (tmp_path / "port").write_text("1\n")
    done = finished(
        [*PLAIN], TOPICS_HOST="192.0.2.1", TOPICS_ALLOW_INSECURE_NO_AUTH="1", TOPICS_PORT_FILE=str(tmp_path / "port")
    )
    assert done.returncode == 1
    assert not (tmp_path / "port").exists()


def test_port_in_use_names_flag_and_variable():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = finished([*PLAIN], TOPICS_PORT=str(taken.getsockname()[1]))
    assert done.returncode == 1
    [refusal] = [event for event in events(done.stderr) if event["event"] == "cannot_listen"]
    assert refusal["reason"] == "Address already in use"
    assert "--port or TOPICS_PORT" in str(refusal["hint"])


def test_server_listens_on_ipv6_and_host_names(tmp_path: Path):
    if not has_ipv6():
        pytest.fail("this machine has no IPv6 loopback")
    for host in ("::1", "[::1]", "localhost"):
        (tmp_path / "port").unlink(missing_ok=True)
        with serving(tmp_path, "--host", host) as server:
            where = "localhost" if host == "localhost" else "[::1]"
            assert httpx.get(f"http://{where}:{server.port}/v0/health").status_code == 200


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


# --- limits ---


def test_limits_and_timeouts_are_those_of_the_settings(tmp_path: Path):
    with serving(
        tmp_path, "--max-header-bytes", "1KiB", TOPICS_MAX_HEADERS="20", TOPICS_IDLE_TIMEOUT_MS="1000"
    ) as server:
        assert httpx.get(f"{server.url}/v0/health", headers={"x": "y" * 1500}).status_code == 431
        many = {f"x-{n}": "y" for n in range(30)}
        assert httpx.get(f"{server.url}/v0/health", headers=many).status_code == 431
        idle = server.get("/v0/health")
        assert read_all(idle).endswith(b'{"status":"ok"}')  # read to the end: the server closed the connection


def test_body_above_the_limit_is_refused(tmp_path: Path):
    small = {"TOPICS_MAX_BODY_BYTES": "2k", "TOPICS_MAX_RECORD_BYTES": "1k", "TOPICS_MAX_META_BYTES": "1k"}
    with serving(tmp_path, **small) as server:
        assert httpx.post(f"{server.url}/v0/health", content=b"x" * 2048).status_code == 200
        assert httpx.post(f"{server.url}/v0/health", content=b"x" * 2049).status_code == 413


def test_pages_of_a_configured_origin_may_call(tmp_path: Path):
    page = {"origin": "https://app.example"}
    with serving(tmp_path, TOPICS_CORS_ORIGINS="https://app.example") as server:
        answer = httpx.get(f"{server.url}/v0/health", headers=page)
        ask = page | {"access-control-request-method": "PUT"}
        preflight = httpx.options(f"{server.url}/v0/topics/t", headers=ask)
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert (preflight.status_code, "PUT" in preflight.headers["access-control-allow-methods"]) == (204, True)


def test_no_cors_headers_without_configured_origins(tmp_path: Path):
    with serving(tmp_path) as server:
        answer = httpx.get(f"{server.url}/v0/health", headers={"origin": "https://app.example"})
    assert "access-control-allow-origin" not in answer.headers


# --- stopping ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_open_request_finishes_after_a_signal(tmp_path: Path, number: signal.Signals):
    with serving(tmp_path) as server:
        httpx.get(f"{server.url}/v0/health")
        open_request = server.get("/slow")
        httpx.get(f"{server.url}/v0/health")  # answered after the previous request was received
        server.signal(number)
        answer = read_all(open_request)
        code, out, _ = server.ended()
    assert answer.endswith(b'\r\n\r\n"late"')
    assert b"connection: close" in answer.lower()
    assert (code, "application stopped" in out) == (0, True)


def test_idle_connection_does_not_delay_the_stop(tmp_path: Path):
    with serving(tmp_path, "--drain-timeout-ms", "60000") as server, httpx.Client() as client:
        client.get(f"{server.url}/v0/health")
        server.signal(signal.SIGTERM)
        assert server.ended()[0] == 0


def test_drain_timeout_cuts_off_an_endless_request(tmp_path: Path):
    with serving(tmp_path, "--drain-timeout-ms", "200") as server:
        open_request = server.get("/stuck")
        httpx.get(f"{server.url}/v0/health")
        server.signal(signal.SIGTERM)
        with contextlib.suppress(ConnectionResetError):
            assert read_all(open_request) == b""
        code, _, err = server.ended()
    assert code == 0
    assert "drain_timed_out" in [event["event"] for event in events(err)]


def test_second_sigint_exits_at_once(tmp_path: Path):
    with serving(tmp_path, "--drain-timeout-ms", "60000") as server:
        open_request = server.get("/stuck")
        httpx.get(f"{server.url}/v0/health")
        server.signal(signal.SIGINT)
        wait_for_drain(server)
        server.signal(signal.SIGINT)
        code, out, _ = server.ended()
        open_request.close()
    assert (code, "application stopped" in out) == (130, False)


@pytest.mark.parametrize("state", ["serving", "starting", "draining"])
def test_hangup_never_ends_the_server(tmp_path: Path, state: str):
    with serving(tmp_path, "--drain-timeout-ms", "1000", START="hang" if state == "starting" else "") as server:
        open_request = server.get("/stuck")
        httpx.get(f"{server.url}/v0/health")
        if state == "draining":
            server.signal(signal.SIGTERM)
            wait_for_drain(server)
        server.signal(signal.SIGHUP)
        server.wait_for_event("reloaded")
        if state != "draining":
            assert httpx.get(f"{server.url}/v0/health").status_code == 200
            server.signal(signal.SIGTERM)
        code, out, _ = server.ended()
        open_request.close()
    assert (code, "application stopped" in out) == (0, True)


def test_starting_server_can_be_stopped(tmp_path: Path):
    with serving(tmp_path, START="hang") as server:
        assert httpx.get(f"{server.url}/v0/health").status_code == 200
        server.signal(signal.SIGTERM)
        assert server.ended()[0] == 0


def test_failed_start_logs_the_reason_only(tmp_path: Path):
    with serving(tmp_path, START="fail") as server:
        code, out, err = server.ended()
    assert (code, "application stopped" in out) == (1, True)
    [failure] = [event for event in events(err) if event["event"] == "cannot_start"]
    assert failure["reason"] == "snapshot at byte 12: checksum does not match"
    assert "frames" not in failure
    assert not {"draining", "stopped"} & {event["event"] for event in events(err)}


def test_unavailable_data_directory_logs_the_reason_only():
    done = finished([*PLAIN], TOPICS_PORT="0", START="locked")
    assert done.returncode == 1
    [failure] = [event for event in events(done.stderr) if event["event"] == "cannot_start"]
    assert "frames" not in failure
    assert "data" in str(failure["reason"])


def test_failed_stop_is_logged_with_status_1(tmp_path: Path):
    with serving(tmp_path, START="stuck") as server:
        server.signal(signal.SIGTERM)
        code, _, err = server.ended()
    assert (code, "s3cret" in err) == (1, False)
    assert "cannot_stop" in [event["event"] for event in events(err)]


def test_unresolvable_host_exits_with_status_1():
    done = finished([*PLAIN], TOPICS_HOST="x" * 70 + ".invalid", TOPICS_ALLOW_INSECURE_NO_AUTH="1")
    assert (done.returncode, "cannot_listen" in done.stderr) == (1, True)


# --- the whole server ---


def test_command_serves_topics_and_stops_when_asked(tmp_path: Path):
    with serving(tmp_path, "--data-dir", str(tmp_path / "data"), command=[*TOPICS, "serve"]) as server:
        with httpx.Client(base_url=server.url) as client:
            assert client.get("/v0/health").json()["status"] == "ok"
            wait_until_ready(client)
            written = client.post("/v0/topics/orders", json={"records": [{"data": {"qty": 1}}]}).json()
            assert written["seqs"] == [1]
            [record] = client.post("/v0/topics/orders/diff", json={}).json()["records"]
            assert (record["$seq"], record["data"]) == (1, {"qty": 1})
        server.signal(signal.SIGTERM)
        assert server.ended()[0] == 0


# --- logs ---


def test_logs_without_a_terminal_are_json_with_warnings(tmp_path: Path):
    with serving(tmp_path, TOPICS_DATADIR="x") as server:
        server.signal(signal.SIGTERM)
        _, _, err = server.ended()
    reported = events(err)
    names = [event["event"] for event in reported]
    assert {"memory_only", "no_api_keys", "unknown_variable", "listening", "draining", "stopped"} <= set(names)
    assert "did you mean TOPICS_DATA_DIR?" in str(reported[names.index("unknown_variable")]["hint"])


def test_logs_contain_no_tokens_or_exception_messages(tmp_path: Path):
    with serving(tmp_path, TOPICS_API_KEYS="s3cret", TOPICS_LOG_LEVEL="debug") as server:
        answer = httpx.get(f"{server.url}/broken?token=s3cret", headers={"authorization": "Bearer s3cret"})
        server.signal(signal.SIGTERM)
        code, out, err = server.ended()
    assert (answer.status_code, code) == (500, 0)
    assert "s3cret" not in out + err + answer.text


def test_data_directory_in_use_is_refused_before_the_address_is_printed(tmp_path: Path):
    data = tmp_path / "data"
    with serving(tmp_path, "serve", command=TOPICS, TOPICS_DATA_DIR=str(data)):
        done = finished([*TOPICS, "serve"], TOPICS_PORT="0", TOPICS_DATA_DIR=str(data), TOPICS_LOG_FORMAT="json")
    assert (done.returncode, done.stdout) == (1, "")
    [failure] = [event for event in events(done.stderr) if event["event"] == "cannot_start"]
    assert "is held by pid" in str(failure["reason"])
