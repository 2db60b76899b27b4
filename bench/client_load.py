"""Clients that write or read records as fast as they can: a bare socket, bare httpx, and the async client.

    python client_load.py write|read socket|httpx|client PORT RECORDS

Prints the records per second, and per second of the client's own processor time. The process is one client: what the
server costs is not in its processor time.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import time
from collections.abc import Iterator

import httpx
import msgspec

from topics.client import AsyncTopics

BATCH = 1_000
DATA = {"sku": "AEROPRESS-GO", "qty": 1, "total": 3499}
HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}
WRITE, READ = "/v0/topics/written?return_seqs=false", "/v0/topics/read/diff"


def _bodies(records: int) -> Iterator[bytes]:
    for _ in range(records // BATCH):
        yield msgspec.json.encode({"records": [{"data": DATA} for _ in range(BATCH)]})


def _next(answer: bytes) -> tuple[int, bool]:
    """Use every record as a program would: look at its data. Return where to read on, and whether that is all."""
    page = msgspec.json.decode(answer)
    for record in page["records"]:
        assert record["data"]
    return page["next_from_seq"], page["caught_up"]


class Clock:
    """Measures from the first request on: imports and connections are not part of a rate."""

    def start(self) -> None:
        self._started, self._used = time.perf_counter(), time.process_time()

    def print_rates(self, records: int) -> None:
        print(records / (time.perf_counter() - self._started), records / (time.process_time() - self._used))


def write_socket(port: int, records: int, clock: Clock) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    clock.start()
    for body in _bodies(records):
        connection.request("POST", WRITE, body, HEADERS)
        answer = connection.getresponse()
        assert answer.status < 300, answer.status
        answer.read()
    connection.close()


def read_socket(port: int, records: int, clock: Clock) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    clock.start()
    seq, ended = 0, False
    while not ended:
        body = json.dumps({"from_seq": seq, "limit": BATCH, "include_tags": True})
        connection.request("POST", READ, body, HEADERS)
        seq, ended = _next(connection.getresponse().read())
    assert seq == records
    connection.close()


async def write_httpx(port: int, records: int, clock: Clock) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS) as client:
        await client.get("/v0/health")
        clock.start()
        for body in _bodies(records):
            (await client.post(WRITE, content=body)).raise_for_status()


async def read_httpx(port: int, records: int, clock: Clock) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=HEADERS) as client:
        await client.get("/v0/health")
        clock.start()
        seq, ended = 0, False
        while not ended:
            answer = await client.post(READ, json={"from_seq": seq, "limit": BATCH, "include_tags": True})
            seq, ended = _next(answer.content)
        assert seq == records


async def write_client(port: int, records: int, clock: Clock) -> None:
    async with AsyncTopics(f"http://127.0.0.1:{port}") as topics:
        await topics.health()
        clock.start()
        async with topics.writer("written") as writer:
            for _ in range(records):
                last = await writer.append(DATA)
        assert await last


async def read_client(port: int, records: int, clock: Clock) -> None:
    async with AsyncTopics(f"http://127.0.0.1:{port}") as topics:
        await topics.health()
        clock.start()
        async for item in topics.follow("read"):
            assert item.data  # type: ignore[union-attr]
            if item.seq == records:  # type: ignore[union-attr]
                return


def main(what: str, how: str, port: int, records: int) -> None:
    clock = Clock()
    made = globals()[f"{what}_{how}"](port, records, clock)
    if made is not None:
        asyncio.run(made)
    clock.print_rates(records)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
