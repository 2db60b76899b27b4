"""w18: a sparse scan of records that are in no cache, against reading the same files sequentially.

One record in a thousand has the tag that is asked for. Every round begins with a server that was just started, on files
that were dropped from the page cache: neither columns nor data are in memory. The floor reads the same files with plain
`pread`, one after the other, and looks at nothing. `a few left` is a scan without a filter of 1 M records at most, of
which all but one in a hundred were deleted.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import ExitStack
from pathlib import Path

from api import Api
from fill import send_all
from payload import DATA, post
from peers import Server, running, start_topics
from plan import Plan
from row import Ask, Outcome, Reading, Row, at_least
from turns import Contender, ratio, take_turns

TAGS = 1_000
DELETES_MAX = 1_000_000
PIECE_BYTES = 1 << 20
SCAN_TIMEOUT_S = 200


class Subject:
    """A data directory, and the last server started on it."""

    def __init__(self, plan: Plan, stack: ExitStack) -> None:
        self.plan = plan
        self.path = plan.fresh_dir("cold")
        self.records = plan.scale.growth[-1]
        self.with_deletes = min(self.records, DELETES_MAX)
        self.stack = stack
        self.server = self._start()
        self._fill()
        self.server.stop()

    def _start(self) -> Server:
        return self.stack.enter_context(running(start_topics(self.plan, self.path)))

    def _fill(self) -> None:
        rows = [b'{"data":%b,"tag":"c%d"}' % (DATA, number) for number in range(TAGS)]
        some = [b'{"data":%b,"tag":"%b"}' % (DATA, b"drop" if number % 100 else b"keep") for number in range(TAGS)]
        for topic, batch, records in (("t", rows, self.records), ("holes", some, self.with_deletes)):
            Api(self.server.port).create(topic, durability="disk")
            request = post(f"/v0/topics/{topic}?return_seqs=false", b'{"records":[%b]}' % b",".join(batch))
            send_all(self.server.port, (request for _ in range(records // TAGS)))
        Api(self.server.port).call("POST", "/v0/topics/holes/delete", {"match": ["tag", "Eq", "drop"]})

    def restart(self) -> None:
        """Start a new server, and drop its files from the page cache."""
        self.server.stop()
        self.server = self._start()
        self.evict()

    def evict(self) -> None:
        for path in self.files():
            fd = os.open(path, os.O_RDONLY)
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def files(self) -> list[Path]:
        """Return the files of the topic that is scanned by tag: it was created first."""
        return sorted(sorted((self.path / "segments").iterdir())[0].glob("*.seg"))

    def scan(self, topic: str, body: dict[str, object], expected: int) -> float:
        """Return the seconds of one scan."""
        started = time.perf_counter()
        status, answer = Api(self.server.port, timeout_s=SCAN_TIMEOUT_S).raw("POST", f"/v0/topics/{topic}/scan", body)
        elapsed = time.perf_counter() - started
        *rows, end = answer.splitlines()
        assert status == 200, answer[:200].decode()
        assert "end" in json.loads(end), f"the scan ended with {end[:200].decode()}"
        assert len(rows) == expected, f"{len(rows)} records found, {expected} expected"
        return elapsed

    def sparse(self) -> float:
        """Return the records examined per second, as the other methods do."""
        return self.records / self.scan("t", {"filter": ["tag", "Eq", "c36"]}, self.records // TAGS)

    def with_gaps(self) -> float:
        return self.with_deletes / self.scan("holes", {}, self.with_deletes // 100)

    def floor(self) -> float:
        started = time.perf_counter()
        for path in self.files():
            fd = os.open(path, os.O_RDONLY)
            at = 0
            while piece := os.pread(fd, PIECE_BYTES, at):
                at += len(piece)
            os.close(fd)
        return self.records / (time.perf_counter() - started)


def measure(plan: Plan) -> Outcome:
    with ExitStack() as stack:
        subject = Subject(plan, stack)

        def pid() -> int:
            return subject.server.pid

        sides = take_turns(
            [
                Contender(name="scan, cold", unit="records/s", run=subject.sparse, before=subject.restart, pid=pid),
                Contender(name="pread, cold", unit="records/s", run=subject.floor, before=subject.evict),
                Contender(
                    name="a few left, cold", unit="records/s", run=subject.with_gaps, before=subject.restart, pid=pid
                ),
                Contender(
                    name="scan, in the cache", unit="records/s", run=subject.sparse, before=subject.sparse, pid=pid
                ),
            ],
            rounds=plan.scale.rounds,
        )
    cold, floor, with_gaps, warm = sides
    readings = [
        ratio("pread", cold, floor),
        ratio("pread, a few left", with_gaps, floor),
        ratio("in the cache", cold, warm),
    ]
    readings.append(Reading(key="scan, cold", value=cold.median))
    return Outcome(readings, sides)


ROW = Row(
    id="w18",
    title="sparse scan of 1 M records (10 M with --full) that are in no cache: one tag in 1000",
    peer="reading the same files in order with pread; the same scan once more, from the page cache",
    asks=(
        Ask(key="pread", bar=at_least(0.2), goal=at_least(0.5), cpu_bound=False),
        Ask(key="pread, a few left", cpu_bound=False),
        Ask(key="in the cache", cpu_bound=False),
        Ask(key="scan, cold", unit="records/s", cpu_bound=False),
    ),
    measure=measure,
    needs=(),
    time_limit_s=600,
)
