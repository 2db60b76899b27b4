"""The memory budget: no client makes the server hold more, refusals are clear, and memory comes back."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.contract.api import Api, eventually
from tests.live.events import Events
from tests.live.inside import Inside
from tests.security.conftest import Caller, read_reply
from tests.security.hoard import MIB, UNIT_BYTES, Connection, request
from tests.security.hoarding import Figures, Target
from tests.security.test_limits import throttled
from tests.security.ways import WAYS
from topics.model.records import NewRecord, WriteRequest
from topics.server.limits.budget import SMALL_BYTES

Start = Callable[..., Caller]
SLOW = {"idempotency_keys"}  # fills a budget with keys of half a kilobyte


def check(target: Target, figures: Figures, name: str) -> None:
    budget_bytes, slack_bytes = target.budget_bytes, target.slack_bytes
    assert figures.refusals, f"{name}: nothing was refused"
    assert figures.small == [200, 200, 200], f"{name}: small requests must go on"
    assert sum(figures.charged.values()) <= budget_bytes + UNIT_BYTES, f"{name}: {figures.charged}"
    grown = figures.peak - figures.base
    assert grown < budget_bytes * 5 // 4 + slack_bytes, f"{name}: {grown >> 20} MiB of memory"
    assert figures.left < MIB, f"{name}: {figures.left} bytes are still charged"
    assert figures.after < figures.base + slack_bytes, f"{name}: {(figures.after - figures.base) >> 20} MiB are kept"


def hold_in_every_way(directory: Path, budget_bytes: int, names: list[str], *, ulimit: str = "") -> None:
    target = Target(directory, budget_bytes, ulimit=ulimit)
    try:
        base = target.memory_bytes("VmRSS")
        for name in names:
            check(target, Figures(target, name), name)
        assert target.wait_for_memory(base + target.slack_bytes) < base + target.slack_bytes
    finally:
        target.server.stop()


def test_no_way_to_hold_bytes_passes_the_budget(tmp_path: Path):
    hold_in_every_way(tmp_path, 32 * MIB, [name for name in WAYS if name not in SLOW])


@pytest.mark.torture
@pytest.mark.parametrize("name", WAYS)
def test_no_way_to_hold_bytes_passes_a_large_budget(tmp_path: Path, name: str):
    """In a process whose address space ends 1 GiB above the budget: an allocation that fails would end it."""
    hold_in_every_way(tmp_path, 512 * MIB, [name], ulimit=f"-v {(512 + 1024 + 1024) * 1024}")


# --- single rules


@pytest.fixture
def inside() -> Iterator[Callable[..., Inside]]:
    """Servers with settings of their own, in threads of this process."""
    with ExitStack() as stack:

        def start(**settings: object) -> Inside:
            server = Inside(**{"memory_budget_bytes": 32 * MIB, "pressure_lag_ms": 0} | settings)
            stack.callback(server.stop)
            return server

        yield start


@pytest.fixture
def api_of() -> Iterator[Callable[[Inside], Api]]:
    with ExitStack() as stack:

        def connect(server: Inside) -> Api:
            api = Api(server.url)
            stack.callback(api.close)
            return api

        yield connect


def fill(server: Inside) -> None:
    """Have the budget full, as if others held all of it."""
    server.call(lambda: server.app.budget.charge("answers", server.app.budget.limit_bytes))


def empty(server: Inside) -> None:
    server.call(lambda: server.app.budget.charge("answers", -server.app.budget.limit_bytes))


def charged(server: Inside) -> dict[str, int]:
    return server.call(server.app.budget.accounts)


def test_a_full_budget_refuses_large_requests_and_serves_small_ones(
    inside: Callable[..., Inside], api_of: Callable[[Inside], Api]
):
    server = inside()
    api = api_of(server)
    api.put("q", type="queue")
    api.write("t", *["x" * 1000] * 20)
    api.write("small", 1, 2)
    fill(server)
    body = {"records": [{"data": "x" * SMALL_BYTES}]}
    refused: list[tuple[str, str, Any]] = [
        ("POST", "/v0/topics/t", body),
        ("POST", "/v0/topics/t/diff", {}),
        ("POST", "/v0/topics/t/scan", {}),
        ("POST", "/v0/topics/q/claim", {"node": "w"}),
        ("POST", "/v0/watch", {"topics": {"t": {}}}),
        ("GET", "/v0/topics/q/work?node=w", None),
        ("POST", "/v0/topics/t", {"records": [{"data": 1}], "idempotency_key": "k"}),
    ]
    for method, path, content in refused:
        error = api.refused(429, "throttled", method, path, content)
        assert error["detail"]["limit"] == "memory_budget_bytes", path
        assert error["detail"]["max"] == 32 * MIB
    assert api.state("t")["head_seq"] == 20
    assert api.write("small", 3)["first_seq"] == 3
    assert len(api.diff("small")["records"]) == 3
    assert len(api.diff("t", limit=2)["records"]) == 2
    assert api.call("POST", "/v0/topics/q/ack", {"node": "w", "seqs": [1]}).status_code == 200
    metrics = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    assert metrics["topics_memory_charged_bytes"]["answers"] == 32 * MIB
    assert metrics["topics_topic_metrics_truncated"] == 1
    empty(server)
    for method, path, content in refused[:2]:
        assert api.call(method, path, content).status_code == 200


def test_long_polls_that_wake_while_the_budget_is_full_are_refused(
    inside: Callable[..., Inside], api_of: Callable[[Inside], Api]
):
    server = inside()
    api = api_of(server)
    api.put("t")
    waiting = Connection(server.port)
    waiting.send(request("POST", "/v0/topics/t/diff", {"wait_ms": 20_000}))
    eventually(lambda: server.call(lambda: len(server.app.services.runtime.open_ended)), lambda polls: polls == 1)
    fill(server)
    record = NewRecord(Raw(b'"%b"' % (b"x" * 1000)))
    server.call(lambda: server.app.services.engine.append("t", WriteRequest([record] * 30)))
    assert waiting.was_refused()
    waiting.sock.close()


def test_waiting_workers_get_their_jobs_once_there_is_room(
    inside: Callable[..., Inside], api_of: Callable[[Inside], Api]
):
    server = inside()
    api = api_of(server)
    api.put("q", type="queue")
    claim = Connection(server.port)
    claim.send(request("POST", "/v0/topics/q/claim", {"node": "w", "wait_ms": 20_000}))
    eventually(lambda: server.call(lambda: len(server.app.services.runtime.open_ended)), lambda polls: polls == 1)
    work = Events(server.url, "/v0/topics/q/work?node=s")
    fill(server)
    api.write("q", 1, 2)
    assert not claim.answered(0.2)
    empty(server)
    assert b"200 OK" in claim.head()
    assert work.until("job")[-1].data["data"] in (1, 2)
    work.close()
    claim.sock.close()


def test_watchers_that_read_are_served_while_the_budget_is_full(
    inside: Callable[..., Inside], api_of: Callable[[Inside], Api]
):
    server = inside()
    api = api_of(server)
    api.put("t")
    session = api.call("POST", "/v0/watch", {"topics": {"t": {}}, "max_batch_bytes": 8 * MIB}).json()
    watcher = Events(server.url, session["stream_url"])
    watcher.until("caught-up")
    fill(server)
    for _ in range(20):
        api.write("t", *["x" * 1000] * 12)
    got = 0
    while got < 240:
        frame = watcher.until("record")[-1].data
        got += len(frame["records"])
        assert len(json.dumps(frame)) < 2 * SMALL_BYTES
    watcher.close()


def test_unfinished_bodies_are_refused_newest_first_and_older_ones_finish(inside: Callable[..., Inside]):
    server = inside(memory_budget_bytes=8 * MIB)
    body = b'{"records":[{"data":1}]}' + b" " * 3 * MIB
    whole = request("POST", "/v0/topics/t", body)
    first, second, third = (Connection(server.port) for _ in range(3))
    for connection in (first, second):
        connection.send(whole[:-1])
    eventually(lambda: charged(server)["bodies"], lambda size: size > 6 * MIB)
    third.send_patiently(whole[: 2 * MIB + MIB // 2])
    assert third.answered(10)
    assert third.was_refused()
    assert 6 * MIB < charged(server)["bodies"] < 7 * MIB
    for connection in (first, second):
        connection.send(whole[-1:])
        assert connection.head()[:15] in (b"HTTP/1.1 200 OK", b"HTTP/1.1 201 Cr")
    for connection in (first, second, third):
        connection.sock.close()
    eventually(lambda: sum(charged(server).values()), lambda size: size == 0)


def test_a_body_the_budget_could_never_hold_is_too_large(inside: Callable[..., Inside]):
    server = inside(memory_budget_bytes=8 * MIB)
    connection = Connection(server.port)
    connection.send(b"POST /v0/topics/t HTTP/1.1\r\nhost: [::1]\r\ncontent-length: %d\r\n\r\n" % (8 * MIB))
    assert b" 413 " in connection.head()
    connection.sock.close()


def test_a_large_body_of_a_read_is_refused_before_it_is_sent(inside: Callable[..., Inside]):
    connection = Connection(inside().port)
    fields = b"host: [::1]\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (2 * MIB)
    connection.send(b"POST /v0/topics/t/diff HTTP/1.1\r\n" + fields)
    assert b" 413 " in connection.head()
    connection.sock.close()


def test_a_key_has_a_request_under_way_until_its_answer_is_delivered(call: Start):
    server = call(api_keys="a,b", max_inflight_per_key=2)
    for _ in range(16):
        server.send("POST", "/v0/topics/t", {"records": [{"data": "x" * 500_000}]}, key="b")
    held = []
    for _ in range(2):
        connection = Connection(server.port)
        wanted = request("POST", "/v0/topics/t/diff", {"max_batch_bytes": 8 * MIB}, fields=("authorization: Bearer a",))
        connection.send(wanted)
        assert b"200 OK" in connection.head()
        held.append(connection)
    throttled(server.send("GET", "/v0/topics/t", key="a"), "max_inflight_per_key", 2)
    assert server.send("GET", "/v0/topics/t", key="b").status == 200
    held.pop().sock.close()
    eventually(lambda: server.send("GET", "/v0/topics/t", key="a").status, lambda status: status == 200)
    reader = held.pop()
    reader.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    size = int(reader.got.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    left = size - len(reader.got.partition(b"\r\n\r\n")[2])
    while left > 0:
        left -= len(reader.sock.recv(1 << 20))
    polls = [server.connect() for _ in range(2)]
    for sock in polls:
        sock.sendall(request("GET", "/v0/topics/t", fields=("authorization: Bearer a",)))
        assert read_reply(sock)[0].status == 200
        sock.close()
    reader.sock.close()


def test_idempotency_keys_are_charged_refused_and_forgotten(
    inside: Callable[..., Inside], api_of: Callable[[Inside], Api]
):
    budget_bytes = MIB // 4  # about 400 keys, which a slow machine writes before the first ones expire, too
    server = inside(memory_budget_bytes=budget_bytes)
    api = api_of(server)
    api.put("t", idempotency_window_ms=3000, cap_records=10)
    made = 0
    while (answer := api.call("POST", "/v0/topics/t", key_write(made))).is_success:
        made += 1
        assert made < 2000
    assert answer.json()["error"]["detail"]["limit"] == "memory_budget_bytes"
    assert charged(server)["idempotency"] > budget_bytes // 2
    assert api.call("POST", "/v0/topics/t", key_write(made - 1)).json()["deduped"], "a retry is not a new key"
    assert api.write("t", 1), "a write without a key needs no room"
    eventually(lambda: charged(server)["idempotency"], lambda size: size == 0)
    assert api.call("POST", "/v0/topics/t", key_write(made)).is_success


def key_write(n: int) -> dict[str, Any]:
    return {"records": [{"data": 1}], "idempotency_key": f"{n}-" + "k" * 240}


def test_paths_that_name_nothing_are_not_remembered(inside: Callable[..., Inside], api_of: Callable[[Inside], Api]):
    server = inside()
    api = api_of(server)
    before = server.call(lambda: len(server.app.requests.routes.known))
    for n in range(20):
        api.call("GET", f"/v0/topics/{n}" + "x" * 20_000)
    assert server.call(lambda: len(server.app.requests.routes.known)) == before


def test_a_server_that_was_full_is_soon_as_fast_as_before(
    inside: Callable[..., Inside], api_of: Callable[[Inside], Api]
):
    """The hot path is taken again: a request then needs no look at the budget."""
    server = inside()
    assert server.call(lambda: server.app.requests.direct)
    fill(server)
    assert not server.call(lambda: server.app.requests.direct)
    empty(server)
    assert server.call(lambda: server.app.requests.direct)
    assert api_of(server).get("/v0/health")
