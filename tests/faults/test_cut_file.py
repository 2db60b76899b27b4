"""A segment file that is truncated while the server runs: its records are lost and reported, and no others."""

from __future__ import annotations

import json
import os
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from tests.conftest import WAIT_S, StartServer

RECORDS = 4_000
WHOLE = 900  # records of an answer that is lent from the file


def test_truncated_segment_loses_its_own_records_only(start_server: StartServer, tmp_path: Path):
    data = tmp_path / "data"
    server = start_server(data_dir=data, segment_max_events=2_000, checkpoint_interval_ms=100, sync_interval_ms=1)
    rows = [{"data": {"n": n, "text": "x" * 80}} for n in range(1_000)]
    for _ in range(RECORDS // len(rows)):
        assert ask(server.port, "", {"records": rows})["count"] == len(rows)
    path = wait_for(lambda: next(iter(sorted(data.glob("segments/*/*01.seg"))), None))
    # A later snapshot refers to the file, so the server reads from it. Before that it still has the records in memory.
    wait_for(lambda: any(_is_later(one, path) for one in data.glob("snapshots/*.snap")))
    wanted = {"from_seq": 0, "limit": WHOLE, "max_batch_bytes": 4 << 20}
    for _ in range(3):
        assert len(ask(server.port, "/diff", wanted)["records"]) == WHOLE
    os.truncate(path, 4096)

    def read_on() -> dict | None:
        try:
            answer = ask(server.port, "/diff", wanted)
        except (
            HTTPException,
            OSError,
            ValueError,
        ):  # the connection is closed: the head of the answer was sent before the bytes were missing
            answer = None
        assert server.process.poll() is None, server.log()
        return answer if answer and answer["tombstone"] else None

    answer = wait_for(read_on)
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["reason"]) == (1, "corrupt")
    rest = ask(server.port, "/diff", {"from_seq": 2_000, "limit": 1_000, "max_batch_bytes": 4 << 20})
    assert [row["$seq"] for row in rest["records"]] == list(range(2_001, 3_001))
    server.kill()  # `stop` would fail: the log reports the damage


def _is_later(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_mtime_ns > other.stat().st_mtime_ns
    except FileNotFoundError:  # an old snapshot is removed
        return False


def ask(port: int, verb: str, body: dict) -> dict:
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", f"/v0/topics/t{verb}", json.dumps(body), {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def wait_for(look):
    deadline = time.monotonic() + WAIT_S
    while not (seen := look()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return seen
