"""Watchers that come and go, over server-sent events and WebSockets: each sees every record once, or a tombstone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.faults.kills.logs import Log, read
from tests.faults.kills.server import ANSWER_S, LOST, require
from tests.faults.soak.part import Part
from tests.faults.soak.target import Client, Target

TOPICS = {"live:a": {"durability": "fsync", "cap_records": 300}, "live:b": {"durability": "disk", "cap_records": 50}}
STREAMS, SOCKETS = 4, 2
Event = tuple[str, str, dict[str, Any]]  # name, event id, data


class View:
    """What one watcher has seen of one topic."""

    def __init__(self, watcher: str, log: Log) -> None:
        self._watcher, self._log = watcher, log
        self.seq = 0
        self.count = 0

    def take(self, event: str, data: dict[str, Any]) -> None:
        """Check one event against the position and the records that were acknowledged."""
        name = self._log.name
        if event == "tombstone":
            require(data["gap_from"] == self.seq + 1, f"{name}: {self._watcher} is at {self.seq} and got {data}")
            self.seq = data["gap_to"]
        for row in data.get("records", ()):
            require(row["$seq"] == self.seq + 1, f"{name}: {self._watcher} got {row['$seq']} after {self.seq}")
            self.seq = row["$seq"]
            known = self._log.known.get(self.seq, row["data"])
            require(known == row["data"], f"{name}: {self._watcher} got {row['data'][:40]} at {self.seq}")
            self.count += 1


class Watcher:
    """A reader that connects, reads for a while, hangs up and connects again."""

    def __init__(self, target: Target, name: str, logs: dict[str, Log], rng: Random) -> None:
        self.target, self.name, self.rng = target, name, rng
        self.views = {topic: View(name, log) for topic, log in logs.items()}

    def events(self) -> contextlib.AbstractAsyncContextManager[AsyncIterator[Event]]:
        raise NotImplementedError

    def note(self, event_id: str) -> None:
        """Remember the id of an event that was processed."""

    async def visit(self, seconds: float, until: dict[str, int] | None = None) -> None:
        """Watch for some time, or until the views are at these seqs."""
        try:
            async with asyncio.timeout(seconds), self.events() as events:
                async for event, event_id, data in events:
                    require(event != "error", f"{self.name}: {data}")
                    if "topic" in data:
                        self.views[data["topic"]].take(event, data)
                    self.note(event_id)
                    if until is not None and self.reached(until):
                        return
        except TimeoutError:
            pass
        self.target.tally["visits"] += 1

    def reached(self, heads: dict[str, int]) -> bool:
        return all(self.views[topic].seq >= head for topic, head in heads.items())


class Stream(Watcher):
    """A watcher over server-sent events. It continues a session by the last event id, or begins another one."""

    def __init__(self, target: Target, name: str, logs: dict[str, Log], rng: Random) -> None:
        super().__init__(target, name, logs, rng)
        self._last_id = self._path = ""

    def note(self, event_id: str) -> None:
        self._last_id = event_id or self._last_id

    @contextlib.asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[Event]]:
        if not self._path or not self._last_id or self.rng.random() < 0.5:
            await self._begin()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.target.port, limit=1 << 26)
        try:
            head = f"GET {self._path} HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\n"
            writer.write((head + (f"last-event-id: {self._last_id}\r\n\r\n" if self._last_id else "\r\n")).encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            status = int(answer.split()[1])
            if status in (404, 503):  # the session of a server that was killed, or a server that starts
                self._path = ""
                yield _none()
                return
            require(status == 200, f"{self.name}: {answer!r}")
            yield _frames(reader)
        finally:
            writer.transport.abort()

    async def _begin(self) -> None:
        client = Client(self.target)
        try:
            if self.rng.random() < 0.3:
                topics: dict[str, Any] = {"live:*": {}}
            else:
                topics = {name: {} if self._last_id else {"from_seq": view.seq} for name, view in self.views.items()}
            if not self._last_id:
                topics = {name: {"from_seq": view.seq} for name, view in self.views.items()}
            body = {
                "topics": topics,
                "limit": self.rng.choice((1, 256)),
                **({"cursor": self._last_id} if self._last_id else {}),
            }
            self._path = (await client.must("POST", "/v0/watch", body))["stream_url"]
        finally:
            client.close()


async def _none() -> AsyncIterator[Event]:
    for event in ():
        yield event


async def _frames(reader: asyncio.StreamReader) -> AsyncIterator[Event]:
    while True:
        block = (await reader.readuntil(b"\n\n")).decode()
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "data" in fields:
            yield fields["event"], fields.get("id", ""), msgspec.json.decode(fields["data"])


class Socket(Watcher):
    """A watcher over a WebSocket. It subscribes after the last seq that it has seen."""

    @contextlib.asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[Event]]:
        url = f"ws://127.0.0.1:{self.target.port}/v0/ws"
        async with connect(url, open_timeout=ANSWER_S, close_timeout=1, max_size=1 << 26) as socket:
            topics = {topic: {"from_seq": view.seq} for topic, view in self.views.items()}
            await socket.send(msgspec.json.encode({"op": "subscribe", "topics": topics}).decode())

            async def messages() -> AsyncIterator[Event]:
                async for text in socket:
                    message = msgspec.json.decode(text)
                    if message["op"] != "subscribed":
                        yield message["op"], "", message

            yield messages()


class WatchPart(Part):
    """Two topics with one writer, and the watchers of both."""

    name = "live"

    def __init__(self, target: Target, rng: Random) -> None:
        super().__init__(target, rng)
        self._logs = {name: Log(name, target.tally, **config) for name, config in TOPICS.items()}
        self._watchers: list[Watcher] = [
            *(Stream(target, f"stream-{number}", self._logs, Random(rng.random())) for number in range(STREAMS)),
            *(Socket(target, f"socket-{number}", self._logs, Random(rng.random())) for number in range(SOCKETS)),
        ]

    async def begin(self) -> None:
        for log in self._logs.values():
            await self.client.must("PUT", f"/v0/topics/{log.name}", log.config)

    async def round(self) -> None:
        """Write for some seconds while watchers come and go."""
        over = asyncio.Event()
        tasks = [asyncio.create_task(self._come_and_go(watcher, over)) for watcher in self._watchers]
        try:
            for _ in self.steps(20, 80):
                log = self._logs[self.rng.choice(list(TOPICS))]
                await self.client.send([log.write(self.rng, n=self.rng.choice((1, 1, 5, 40)), tag="x")])
                await asyncio.sleep(self.rng.expovariate(1 / 0.03))
        finally:
            over.set()
            errors = [error for error in await asyncio.gather(*tasks, return_exceptions=True) if error is not None]
            for error in sorted(errors, key=lambda error: isinstance(error, LOST)):
                raise error

    async def _come_and_go(self, watcher: Watcher, over: asyncio.Event) -> None:
        while not over.is_set():
            with _lost():
                await watcher.visit(watcher.rng.choice((0.01, 0.1, 1.0)))
            await asyncio.sleep(watcher.rng.choice((0, 0, 0.2)))

    async def check(self) -> None:
        """Read the topics, and let every watcher read on to the head."""
        heads = {}
        for name, log in self._logs.items():
            page = await read(self.client, name, 0)
            log.check(page)
            heads[name] = page.head
            log.forget(min(page.earliest, page.head))
        for watcher in self._watchers:
            with _lost():
                if not watcher.reached(heads):
                    await watcher.visit(ANSWER_S / 2, until=heads)
                if not watcher.reached(heads):  # its session was gone
                    await watcher.visit(ANSWER_S / 2, until=heads)
            at = {name: view.seq for name, view in watcher.views.items()}
            require(watcher.reached(heads), f"{watcher.name} is at {at}, the topics end at {heads}")
        self.target.tally["pushed"] = sum(view.count for one in self._watchers for view in one.views.values())


@contextlib.contextmanager
def _lost() -> Any:
    """Turn the errors of a WebSocket whose server was killed into those of a socket."""
    try:
        yield
    except (ConnectionClosed, InvalidMessage) as error:
        raise ConnectionResetError(str(error)) from error
