"""An entry that is logged but cannot be applied ends the server: the next start has it, and no answer was wrong."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.conftest import WAIT_S, ServerProcess, StartServer
from topics.server.app import EXIT_HALTED

FAILING_APPLY = str(Path(__file__).with_name("failing_apply.py"))


def ask(port: int, path: str, body: dict) -> dict | None:
    """Return the answer; None if the connection ended without one."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        return json.loads(connection.getresponse().read())
    except (HTTPException, OSError):
        return None
    finally:
        connection.close()


@pytest.mark.parametrize(("durability", "more"), [("disk", 0), ("fsync", 2)])
def test_server_ends_when_a_logged_write_cannot_be_applied(
    durability: str, more: int, tmp_path: Path, start_server: StartServer
) -> None:
    data = tmp_path / "data"
    server = ServerProcess(
        tmp_path / "failing", {"data_dir": data}, program=[FAILING_APPLY], variables={"PYTHONOPTIMIZE": "1"}
    )
    path = "/v0/topics/t"
    assert ask(server.port, path, {"records": [{"data": 1}], "config": {"durability": durability}})["first_seq"] == 1
    poison = {"records": [{"data": "POISON"}, *[{"data": 2}] * more]}
    assert ask(server.port, path, poison) is None, "an answer would be wrong: the record is in the log"
    assert server.process.wait(WAIT_S) == EXIT_HALTED
    [halted] = [line for line in map(json.loads, server.log().splitlines()) if line["event"] == "halted"]
    assert (halted["error"], halted["topic"]) == ("MemoryError", "t")
    server.killed = True

    again = start_server(data_dir=data)
    assert ask(again.port, path, {"records": [{"data": 3}]})["first_seq"] == 3 + more
    found = ask(again.port, f"{path}/diff", {"from_seq": 0})
    assert [row["data"] for row in found["records"]] == [1, "POISON", *[2] * more, 3]
    assert found["tombstone"] is None
