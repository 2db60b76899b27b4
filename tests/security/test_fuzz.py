"""Whatever a key with a prefix sends: no failure of the server, and no word of what lies beyond the prefix."""

import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error

from tests.conftest import ServerProcess
from tests.security.conftest import STREAMS_END_S, Caller, request
from tools.docs import openapi
from topics.server.api.route import Route
from topics.server.api.route_table import ROUTES

KEY, FULL = "the-key-with-a-prefix", "the-full-key"
INSIDE = ("in.plain", "in.queue")
# No answer may reveal these. The word in them appears nowhere else.
HIDDEN = ("hushhush.plain", "hushhush.queue", "hushhush.dead")
EXAMPLES = 12
RAW_REQUESTS = 1_500
INSERTED = (b"\r\n", b"\n", b"\0", b" ", b":", b"%00", b"..", b"/", b"?token=x", b"\xff")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("fuzz")
    running = ServerProcess(directory, {"api_keys": f"{FULL},{KEY}::in.", "data_dir": directory / "data"})
    caller = Caller(running.port)
    for name in (*INSIDE, *HIDDEN):
        kind = {"type": "queue"} if name.endswith("queue") else {}
        assert caller.send("PUT", f"/v0/topics/{name}", kind, key=FULL).status == 201
        record = {"data": name.partition(".")[0], "tag": "x"}
        assert caller.send("POST", f"/v0/topics/{name}", {"records": [record]}, key=FULL).status == 200
    if any(route.path == "/v0/routers/{router}" for route in ROUTES):
        rule = {"source": HIDDEN[0], "dest": HIDDEN[2]}
        assert caller.send("PUT", "/v0/routers/hushhush-router", rule, key=FULL).status == 201
    caller.close()
    yield running
    running.stop()


def reveals(text: str, sent: str) -> bool:
    """Whether an answer says more of the hidden than the request itself did."""
    return "hushhush" in text and "hushhush" not in sent


def operations() -> Iterator[Any]:
    streams = {(route.method, route.path) for route in ROUTES if route.stream}
    for found in schemathesis.openapi.from_dict(openapi.document(ROUTES)).get_all_operations():
        operation = found.ok()
        method = operation.method.upper()
        if method != "HEAD" and (method, operation.path) not in streams:
            yield pytest.param(operation, id=operation.label)


@pytest.mark.parametrize("operation", list(operations()))
def test_made_up_requests_with_a_key_break_nothing_and_learn_nothing(server: ServerProcess, operation: Any):
    names = (*INSIDE, *HIDDEN)

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=GenerationMode.POSITIVE))
    def send(case: schemathesis.Case) -> None:
        for part in case.path_parameters or {}:
            given = str(case.path_parameters[part])
            if len(given) % 2:
                case.path_parameters[part] = names[len(given) // 2 % len(names)]
        if isinstance(case.body, dict):
            for field in ("source", "dest", "dead_letter"):
                if field in case.body:
                    case.body[field] = names[len(str(case.body)) % len(names)]
            if isinstance(case.body.get("wait_ms"), int):
                case.body["wait_ms"] = min(case.body["wait_ms"], 1)
        answer = case.call(base_url=server.url, headers={"authorization": f"Bearer {KEY}"})
        case.validate_response(answer, checks=[not_a_server_error])
        path = case.formatted_path
        if any(path.startswith(f"/v0/{kind}/hushhush") for kind in ("topics", "routers")):
            assert answer.status_code in (400, 403, 404, 405), (path, answer.status_code)
        assert not reveals(answer.text, path + json.dumps(case.body, default=str)), answer.text

    send()


def mutated(rolls: random.Random, data: bytes) -> bytes:
    """A request with a few bytes changed, lost, doubled or moved."""
    broken = bytearray(data)
    for _ in range(rolls.randrange(4)):
        at, length = rolls.randrange(len(broken)), rolls.randrange(1, 9)
        match rolls.randrange(5):
            case 0:
                broken[at] = rolls.randrange(256)
            case 1:
                del broken[at : at + length]
            case 2:
                broken[at:at] = broken[at : at + length]
            case 3:
                broken[at:at] = rolls.choice(INSERTED)
            case 4:
                other = rolls.randrange(len(broken))
                broken[at : at + length], broken[other : other + length] = (
                    broken[other : other + length], broken[at : at + length],
                )  # fmt: skip
        if not broken:
            return b"\r\n"
    return bytes(broken)


def seeds() -> list[bytes]:
    requests = []
    for route in ROUTES:
        for name in (INSIDE[0], INSIDE[1], HIDDEN[0]):
            requests.append(request(route.method, path_of(route, name), body_of(route), key=KEY))
    return requests


def path_of(route: Route, name: str) -> str:
    path = route.path.replace("{topic}", name).replace("{router}", name).replace("{schedule}", name)
    return path.replace("{wid}", "wid_" + "A" * 22)


def body_of(route: Route) -> Any:
    return None if route.method in ("GET", "DELETE") else {"node": "w", "seqs": [1], "records": [{"data": 1}]}


def test_raw_bytes_with_a_key_break_nothing_and_learn_nothing(server: ServerProcess):
    rolls = random.Random(7)
    found = seeds()
    answered = 0
    for _ in range(RAW_REQUESTS):
        sent = b"".join(mutated(rolls, rolls.choice(found)) for _ in range(rolls.randrange(1, 3)))
        with socket.create_connection(("127.0.0.1", server.port), timeout=STREAMS_END_S) as sock:
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            got = b""
            try:
                while piece := sock.recv(65_536):
                    got += piece
            except (TimeoutError, ConnectionError):
                pass
        answered += got.startswith(b"HTTP/1.1 ")
        assert b"HTTP/1.1 5" not in got, (sent, got)
        assert not reveals(got.decode("latin-1"), sent.decode("latin-1")), (sent, got)
    assert answered > RAW_REQUESTS * 0.9
    assert httpx.get(f"{server.url}/v0/health", trust_env=False).status_code == 200
