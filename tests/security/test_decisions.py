"""A connection that repeats a head: its caller and route are decided once, and every change counts at once."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.security.test_leaks import FakeTransport, post
from topics.clock import SystemClock
from topics.config import Settings
from topics.server.access.key_ring import KeyRing
from topics.server.api import request_handler
from topics.server.app import TopicsApp
from topics.server.http.browser_origin import CorsApp
from topics.server.http.http1.connection import Connection
from topics.server.http.http_limits import HttpLimits
from topics.server.http.server import HttpServer

WAIT_S = 10
RECORDS = b'{"records":[{"data":1}]}'
TOPIC = "/v0/topics/in.orders"


class World:
    """A server without sockets, and one connection whose every request is answered before the next."""

    def __init__(self, **settings: str) -> None:
        found = Settings.load({}, {"api_keys": "root,in-key:rw:in.", "pressure_lag_ms": "0"} | settings)
        self.app = TopicsApp(found, SystemClock(), asyncio.get_running_loop())
        self.http = HttpServer(CorsApp(self.app, (), lambda: self.app.keys.origins), HttpLimits.of(found))

    def open(self) -> tuple[Connection, FakeTransport]:
        connection, transport = Connection(self.http), FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    async def ask(self, data: bytes, at: tuple[Connection, FakeTransport] | None = None) -> tuple[int, Any]:
        connection, transport = at or self.open()
        transport.written = b""
        connection.data_received(data)
        return await answer(transport)

    async def call(self, path: str, **body: Any) -> Any:
        status, found = await self.ask(append("root", json.dumps(body).encode(), path=path))
        assert status in (200, 201), found
        return found


async def answer(transport: FakeTransport) -> tuple[int, Any]:
    deadline = asyncio.get_running_loop().time() + WAIT_S
    while not transport.written.endswith(b"}\n"):
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0)
    return int(transport.written.split(b" ", 2)[1]), json.loads(transport.written.partition(b"\r\n\r\n")[2])


def append(secret: str, body: bytes = RECORDS, *, path: str = TOPIC, fields: bytes = b"") -> bytes:
    return post(path, body, fields, auth=f"authorization: Bearer {secret}\r\n".encode())


def run(scenario: Callable[[World], Any], **settings: str) -> None:
    async def live() -> None:
        world = World(**settings)
        await world.app.start()
        try:
            await scenario(world)
        finally:
            for connection in tuple(world.http.connections):
                connection.connection_lost(None)
            world.app.begin_drain()
            await world.http.drain(0)
            await world.app.stop()

    asyncio.run(live())


@pytest.fixture(autouse=True)
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_handler, "DECIDED_MS", 60_000)  # what ends a decision here is never its age


async def warm(world: World, secret: str) -> tuple[Connection, FakeTransport]:
    """Return a connection whose next append with the secret takes the fast path."""
    at = world.open()
    for _ in range(3):
        status, found = await world.ask(append(secret), at)
        assert status in (200, 201), found
    return at


@pytest.mark.parametrize("secret", ["root", "in-key"])
def test_repeated_head_is_looked_up_once(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    looked: list[bytes] = []
    find = KeyRing.find
    monkeypatch.setattr(KeyRing, "find", lambda ring, given: looked.append(given) or find(ring, given))

    async def scenario(world: World) -> None:
        at = await warm(world, secret)
        before = len(looked)
        for _ in range(20):
            assert (await world.ask(append(secret), at))[0] == 200
        assert len(looked) == before
        await world.ask(append(secret))
        assert len(looked) == before + 1, "another connection is looked at by itself"

    run(scenario)


async def token(world: World, **rights: Any) -> dict[str, Any]:
    made: dict[str, Any] = await world.call("/v0/tokens", **rights)
    return made


@pytest.mark.parametrize("way", ["id", "key", "all", "file"])
def test_revoked_token_is_refused_from_the_next_request_on(way: str) -> None:
    async def scenario(world: World) -> None:
        made = await token(world, names=["in.orders"])
        at = await warm(world, made["token"])
        if way == "file":
            world.app.keys.replace(())
        else:
            await world.call("/v0/tokens/revoke", **{"id": {"id": made["id"]}, "key": {"key": "key1"}, "all": {}}[way])
        status, found = await world.ask(append(made["token"]), at)
        assert (status, found["error"]["code"]) == (401, "unauthorized")

    run(scenario)


def test_key_that_is_removed_in_the_turn_of_a_request_counts_for_the_next_one() -> None:
    async def scenario(world: World) -> None:
        first, second = await warm(world, "in-key"), await warm(world, "in-key")
        for connection, transport in (first, second):
            transport.written = b""
            connection.data_received(append("in-key"))
            world.app.keys.replace(())  # the append of the first waits for its commit
        assert (await answer(first[1]))[0] == 200, "it was admitted before"
        assert (await answer(second[1]))[0] == 401

    run(scenario)


def test_token_ends_with_its_time_on_a_busy_connection() -> None:
    async def scenario(world: World) -> None:
        made = await token(world, names=["in.orders"], ttl_ms=300)
        at = await warm(world, made["token"])
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while (await world.ask(append(made["token"]), at))[0] == 200:
            assert asyncio.get_running_loop().time() < deadline
        assert world.app.clock.now_ms() >= made["expires_at"]

    run(scenario)


@pytest.mark.parametrize("overlap_ms", [0, 300])
def test_rotated_secret_ends_on_a_busy_connection(overlap_ms: int) -> None:
    async def scenario(world: World) -> None:
        old = (await world.call("/v0/keys", key="producer", scopes=["write"]))["secret"]
        at = await warm(world, old)
        began_ms = world.app.clock.now_ms()
        new = (await world.call("/v0/keys/producer/rotate", overlap_ms=overlap_ms))["secret"]
        deadline = asyncio.get_running_loop().time() + WAIT_S
        while (await world.ask(append(old), at))[0] == 200:
            assert overlap_ms
            assert asyncio.get_running_loop().time() < deadline
        assert world.app.clock.now_ms() >= began_ms + overlap_ms
        assert (await world.ask(append(new)))[0] == 200

    run(scenario)


def test_requests_in_progress_are_counted_on_the_fast_path() -> None:
    async def scenario(world: World) -> None:
        made = await token(world, names=["in.orders"], max_inflight=1)
        first, second = await warm(world, made["token"]), await warm(world, made["token"])
        for connection, transport in (first, second):
            transport.written = b""
            connection.data_received(append(made["token"]))
        assert [(await answer(at[1]))[0] for at in (first, second)] == [200, 429]
        assert (await world.ask(append(made["token"]), second))[0] == 200, "the first is over"

    run(scenario)


def test_names_in_the_body_are_checked_each_time() -> None:
    async def scenario(world: World) -> None:
        good = b'{"records":[{"data":1}],"config":{"dead_letter":"in.dead"}}'
        at = world.open()
        for _ in range(3):
            assert (await world.ask(append("in-key", good), at))[0] in (200, 201)
        status, found = await world.ask(append("in-key", good.replace(b"in.dead", b"outdead")), at)
        assert (status, found["error"]["code"]) == (403, "forbidden")

    run(scenario)


def test_page_of_another_origin_does_not_profit_from_a_decision() -> None:
    async def scenario(world: World) -> None:
        made = await token(world, names=["in.orders"], origins=["https://a.example"])
        at, ours, other = world.open(), b"origin: https://a.example\r\n", b"origin: https://b.example\r\n"
        for _ in range(3):
            assert (await world.ask(append(made["token"], fields=ours), at))[0] in (200, 201)
        assert (await world.ask(append(made["token"], fields=other), at))[0] == 403

    run(scenario)


def test_head_with_a_key_is_forgotten_once_its_client_is_quiet() -> None:
    async def scenario(world: World) -> None:
        connection, _ = await warm(world, "root")
        assert any(b"Bearer root" in head for head in connection._own)
        for _ in range(2):
            connection.sweep(asyncio.get_running_loop().time())
        assert not connection._own

    run(scenario)
