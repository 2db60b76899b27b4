"""Several addresses: a client stays with one server, follows a takeover, and writes each record once."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.client.fake_server import FakeServer
from topics.client import AsyncTopics, Client, errors
from topics.client.call import Addresses
from topics.client.errors import NotWriter, Unreachable

pytestmark = pytest.mark.anyio

A, B, C = "http://a:1", "http://b:2", "http://c:3"


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.client.call.LONGEST_S", 0.002)


def error_of(code: str, status: int, detail: object = None) -> errors.TopicsError:
    error = {"code": code, "message": "a server", "detail": detail}
    return errors.from_answer(status, None, json.dumps({"error": error}).encode())


def not_writer(writer: str | None) -> errors.TopicsError:
    return error_of("not_writer", 421, {"writer": writer})


def test_addresses_are_separated_by_commas() -> None:
    assert Addresses(f" {A}/ , {B},{A}").all == (A, B)

    for wrong in (f"{A}|{B}", "", ",", "localhost:4000", "ftp://a", f"{A},http://", f"{A},http://b:x"):
        with pytest.raises(errors.BadUrl):
            Addresses(wrong)


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (Unreachable("gone"), B),
        (not_writer(C), C),
        (not_writer(f"{C}/"), C),
        (not_writer(A), B),  # a standby that names itself
        (not_writer(None), B),
        (not_writer("https://c:3"), B),  # a key goes to a server of the same kind only
        (not_writer("http://127.0.0.1:4000"), B),  # is another machine there than here
        (error_of("fenced", 503), B),
        (error_of("replica_unavailable", 503), B),
        (error_of("shutting_down", 503), B),
        (error_of("not_ready", 503), B),
        (error_of("http_502", 502), B),
        (error_of("read_only", 503), A),
        (error_of("throttled", 429), A),
        (error_of("topic_not_found", 404), A),
    ],
)
def test_error_decides_which_address_is_next(error: errors.TopicsError, then: str) -> None:
    addresses = Addresses(f"{A},{B}")
    addresses.leave(A, error)
    assert addresses.url == then
    assert error.has_others is (then != A)


def test_standby_on_this_machine_may_name_a_writer_on_it() -> None:
    addresses = Addresses("http://127.0.0.1:2")
    addresses.leave("http://127.0.0.1:2", not_writer("http://127.0.0.1:1"))
    assert addresses.url == "http://127.0.0.1:1"


def test_second_failure_at_an_address_does_not_leave_the_next_one() -> None:
    addresses = Addresses(f"{A},{B},{C}")
    for _ in range(3):  # requests in flight when the server was killed
        addresses.leave(A, Unreachable("gone"))
    assert addresses.url == B


def test_no_address_is_left_out_while_standbys_name_a_writer_that_is_gone() -> None:
    """The last address has taken over, and the one before it has not noticed yet."""
    addresses, tried = Addresses(f"{A},{B},{C}"), []
    for _ in range(5):
        tried.append(addresses.url)
        addresses.leave(addresses.url, Unreachable("gone") if addresses.url == A else not_writer(A))
    assert C in tried


class Pair:
    """A writer `a` and a standby `b`, as a transport of httpx."""

    def __init__(self) -> None:
        self.writer = "a"
        self.away: set[str] = set()
        self.lost_answers = 0
        self.seen: list[tuple[str, str]] = []
        self.keys: dict[str, int] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        self.seen.append((host, request.url.path))
        if host in self.away:
            raise httpx.ConnectError("refused")
        body = json.loads(request.content or b"{}")
        is_write = request.method != "GET" and not request.url.path.endswith("/diff")
        if is_write and host != self.writer:
            detail = {"writer": A if self.writer == "a" else B}
            return httpx.Response(421, json={"error": {"code": "not_writer", "message": "", "detail": detail}})
        if "claim" in request.url.path:
            return httpx.Response(200, json={"claimed": []})
        if is_write:
            seq = self.keys.setdefault(body["idempotency_key"], len(self.keys) + 1)
            if self.lost_answers:
                self.lost_answers -= 1
                raise httpx.ReadError("cut")
            return httpx.Response(
                200, json={"first_seq": seq, "last_seq": seq, "head_seq": seq, "created": False, "deduped": False}
            )
        return httpx.Response(200, json={"replayed": []})

    def hosts(self) -> str:
        return "".join(host for host, _ in self.seen)


async def test_write_follows_the_standby_to_the_writer_and_reads_stay_there() -> None:
    pair = Pair()
    async with AsyncTopics(f"{B},{A}", transport=httpx.MockTransport(pair)) as topics:
        await topics.openapi()
        await topics.append("orders", 1)
        await topics.openapi()
    assert pair.hosts() == "bbaa"


async def test_client_with_the_address_of_a_standby_finds_the_writer() -> None:
    pair = Pair()
    async with AsyncTopics(B, transport=httpx.MockTransport(pair)) as topics:
        assert (await topics.append("orders", 1)).seq == 1
        pair.away.add("a")
        write = asyncio.create_task(topics.append("orders", 2))
        while len(pair.seen) < 20:
            await asyncio.sleep(0.001)
        pair.writer = "b"
        assert (await write).seq == 2


async def test_standby_that_names_no_writer_is_an_error_without_other_addresses() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        return httpx.Response(421, json=refusal("not_writer", writer="http://127.0.0.1:4000"))

    async with AsyncTopics(B, transport=httpx.MockTransport(refuse)) as topics:
        with pytest.raises(NotWriter):
            await topics.append("orders", 2)


async def test_write_waits_for_the_takeover_with_the_same_key() -> None:
    pair = Pair()
    async with AsyncTopics(f"{A},{B}", transport=httpx.MockTransport(pair)) as topics:
        await topics.append("orders", 1)
        pair.away.add("a")
        write = asyncio.create_task(topics.append("orders", 2))
        while len(pair.seen) < 20:
            await asyncio.sleep(0.001)
        assert not write.done()
        pair.writer, pair.lost_answers = "b", 2
        assert (await write).seq == 2
    assert len(pair.keys) == 2


async def test_claim_that_was_not_sent_goes_to_another_server() -> None:
    pair = Pair()
    pair.away.add("a")
    pair.writer = "b"
    async with AsyncTopics(f"{A},{B}", transport=httpx.MockTransport(pair)) as topics:
        assert await topics.claim("jobs", node="w", retries=0) == []
    assert pair.hosts() == "ab"


async def test_unsafe_request_that_may_have_happened_is_not_repeated() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        detail = {"outcome": "unknown"}
        return httpx.Response(503, json={"error": {"code": "replica_unavailable", "message": "", "detail": detail}})

    asked: list[str] = []
    async with AsyncTopics(f"{A},{B}", transport=httpx.MockTransport(refuse)) as topics:
        with pytest.raises(errors.ReplicaUnavailable):
            await topics.claim("jobs", node="w")
    assert asked == ["a"]


# --- the connection of the command line and of Spark


@pytest.fixture
def started() -> Iterator[Callable[[Callable[[str, str], tuple[int, Any]]], FakeServer]]:
    servers: list[FakeServer] = []

    def start(answer: Callable[[str, str], tuple[int, Any]]) -> FakeServer:
        servers.append(FakeServer(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


WRITTEN = {
    "topic": "orders", "first_seq": 1, "last_seq": 1, "head_seq": 1, "count": 1, "created": False, "deduped": False,
    "performance": {"server_total_ms": 1},
}  # fmt: skip


def refusal(code: str, **detail: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": code, "detail": detail}}


def test_raw_client_follows_a_takeover(started: Any) -> None:
    refusals = iter(range(12))

    def answer(method: str, path: str) -> tuple[int, Any]:
        if next(refusals, None) is None:
            return 200, WRITTEN
        return 421, refusal("not_writer", writer=gone.url)

    gone = started(lambda method, path: (200, WRITTEN))
    standby = started(answer)
    with Client(f"{gone.url},{standby.url}", retries=2) as client:
        client.append("orders", [{"data": 1}], idempotency_key="k1")
        gone.close()
        client.append("orders", [{"data": 2}], idempotency_key="k2")
    assert standby.asked == 13


def test_raw_client_without_an_answer_gives_up_soon(started: Any) -> None:
    one, other = started(lambda method, path: (200, {})), started(lambda method, path: (200, {}))
    one.close()
    other.close()
    with Client(f"{one.url},{other.url}", retries=2) as client, pytest.raises(Unreachable):
        client.append("orders", [{"data": 1}], idempotency_key="k1")


def test_raw_write_without_a_key_is_not_repeated_after_an_unknown_outcome(started: Any) -> None:
    server = started(lambda method, path: (503, refusal("replica_unavailable", outcome="unknown")))
    with Client(server.url) as client, pytest.raises(errors.ReplicaUnavailable):
        client.append("orders", [{"data": 1}])
    assert server.asked == 1
