"""cli: `topics append -` from a pipe and `topics read` to a pipe, on one core beside the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from api import Api
from peers import running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, at_least
from turns import Contender, take_turns

TOPICS = str(Path(sys.executable).parent / "topics")
LINE = b'{"sku": "AEROPRESS-GO", "qty": %d, "paid": true}\n'


def measure(plan: Plan) -> Outcome:
    records = plan.scale.records
    lines = plan.fresh_dir("lines") / "in.jsonl"
    lines.write_bytes(b"".join(LINE % number for number in range(records)))
    with running(start_topics(plan, plan.fresh_dir("topics"))) as server:
        url, names = f"http://127.0.0.1:{server.port}", iter(range(1_000_000))
        _append(url, "full", lines, records)
        contenders = [
            Contender(
                name="topics append -", unit="records/s", pid=lambda: server.pid,
                run=lambda: _append(url, f"t{next(names)}", lines, records),
            ),
            Contender(name="topics read", unit="records/s", pid=lambda: server.pid, run=lambda: _read(url, records)),
        ]  # fmt: skip
        sides = take_turns(contenders, rounds=plan.scale.rounds)
        head = Api(server.port).call("GET", "/v0/topics/full")["head_seq"]
        assert head == records, f"{head} records were appended, {records} expected"
    return Outcome([Reading(key=side.name, value=side.median) for side in sides], sides)


def _append(url: str, topic: str, lines: Path, records: int) -> float:
    """Return the records per second from the start of the command to its end."""
    started = time.perf_counter()
    with lines.open("rb") as source:
        done = subprocess.run(
            [TOPICS, "append", topic, "-", "--url", url], stdin=source, stdout=subprocess.PIPE, env=_env(), check=True
        )
    elapsed = time.perf_counter() - started
    assert json.loads(done.stdout)["count"] == records
    return records / elapsed


def _read(url: str, records: int) -> float:
    """Return the records per second. `wc` counts the lines at the other end of the pipe."""
    started = time.perf_counter()
    reader = subprocess.Popen([TOPICS, "read", "full", "--url", url], stdout=subprocess.PIPE, env=_env())
    counted = subprocess.run(["wc", "-l"], stdin=reader.stdout, stdout=subprocess.PIPE, check=True)
    assert reader.wait() == 0
    elapsed = time.perf_counter() - started
    assert int(counted.stdout) == records, f"{int(counted.stdout)} lines, {records} expected"
    return records / elapsed


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}


ROW = Row(
    id="cli",
    title="the command line: `append -` from a pipe, `read` to a pipe, 1 M records, start of the command included",
    peer="none",
    asks=(
        Ask(key="topics append -", unit="records/s", bar=at_least(200_000), cpu_bound=False),
        Ask(key="topics read", unit="records/s", bar=at_least(500_000), cpu_bound=False),
    ),
    measure=measure,
    needs=(),
)
