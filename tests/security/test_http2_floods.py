"""Floods over HTTP/2 against a real server: its memory stays bounded, and other clients are served meanwhile.

The delay of other clients is judged by `test_fairness.py`, which needs a quiet machine; here it only has a wide bound.
"""

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ServerProcess
from tests.security.fairness import exchange
from tests.security.floods import HTTP2_FLOODS, MOST_STREAMS, POST, Flood, streams, unread, window

MIB = 1 << 20
BUDGET_BYTES = 16 * MIB
GROWTH_BYTES = BUDGET_BYTES + 24 * MIB  # allocations do not fit each other
WORST_S = 5.0
BODY = b'{"records":[{"data":1}]}'
AT_ONCE = 4  # connections with the same flood

# Those that a server ends within milliseconds. The others are part of `test_fairness.py`.
SHORT = ("h2 pings", "h2 settings", "h2 rapid resets", "h2 header block without end", "h2 window updates")
READ = b'{"limit":1000,"max_batch_bytes":4194304}'
READS = streams(MOST_STREAMS, (0, 1, READ), flags=4, path=b"/v0/topics/big/diff", method=POST)
UNREAD = {
    "answers that nobody reads": unread(window((1 << 31) - 1) + READS, seconds=0.3),
    "answers without a window": unread(window(0) + READS, seconds=0.3),
}
FLOODS: dict[str, Flood] = {name: HTTP2_FLOODS[name] for name in SHORT} | UNREAD


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("floods")
    server = ServerProcess(directory, {"data_dir": directory / "data", "memory_budget_bytes": BUDGET_BYTES})
    with httpx.Client(base_url=server.url, http2=True, http1=False) as client:
        big = {"records": [{"data": "x" * 1000}] * 1000}
        for _ in range(4):
            client.post("/v0/topics/big?return_seqs=false", json=big).raise_for_status()
        client.get("/v0/openapi.json").raise_for_status()  # whatever is made once is made by now
    yield server
    server.stop()


def memory_bytes(server: ServerProcess, row: str) -> int:
    """`VmRSS`, or `VmHWM` for the peak."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(text.partition(f"{row}:")[2].split()[0]) * 1024


def flood(server: ServerProcess, run: Flood, *, rounds: int) -> tuple[int, list[float]]:
    """Flood over several connections at once. Return the growth of the memory, and how long appends took meanwhile."""
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # forgets the peak
    before_bytes, took_s = memory_bytes(server, "VmRSS"), []
    threads = [threading.Thread(target=lambda: [run(server.port) for _ in range(rounds)]) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    while not took_s or any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        status, answer = exchange(server.port, "POST", "/v0/topics/t?return_seqs=false", BODY)
        took_s.append(time.monotonic() - began)
        assert status in (200, 201), answer
    return memory_bytes(server, "VmHWM") - before_bytes, took_s


@pytest.mark.parametrize("name", FLOODS)
def test_flood_is_bounded_in_memory_and_delays_no_other_client(server: ServerProcess, name: str):
    grown_bytes, took_s = flood(server, FLOODS[name], rounds=1)
    assert grown_bytes < GROWTH_BYTES, f"{grown_bytes / MIB:.1f} MiB"
    assert max(took_s) < WORST_S


@pytest.mark.torture
@pytest.mark.parametrize("name", HTTP2_FLOODS)
def test_repeated_floods_are_bounded_in_memory(server: ServerProcess, name: str):
    grown_bytes, took_s = flood(server, HTTP2_FLOODS[name], rounds=3)
    print(f"\n{name:28} {grown_bytes / MIB:5.1f} MiB, worst append {max(took_s) * 1000:6.1f} ms of {len(took_s)}")
    assert grown_bytes < GROWTH_BYTES, f"{grown_bytes / MIB:.1f} MiB"
    assert max(took_s) < WORST_S


def test_stop_signal_ends_requests_and_streams_of_http2_in_order(tmp_path: Path):
    server = ServerProcess(tmp_path, {"data_dir": tmp_path / "data"})
    try:
        with httpx.Client(base_url=server.url, http2=True, http1=False, timeout=30) as client:
            client.put("/v0/topics/t", json={}).raise_for_status()
            session = client.post("/v0/watch", json={"topics": {"t": {}}}).json()
            with client.stream("GET", session["stream_url"], headers={"accept": "text/event-stream"}) as stream:
                lines = stream.iter_lines()
                while "caught-up" not in next(lines):
                    pass
                server.process.send_signal(signal.SIGTERM)
                assert stream.http_version == "HTTP/2"
                list(lines)  # ends without an error
        assert server.process.wait(30) == 0
    finally:
        server.kill()
    events = [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]
    assert [event["status"] for event in events if event["event"] == "stopped"] == [0]
    assert not [event for event in events if event["event"] == "drain_timed_out"]
