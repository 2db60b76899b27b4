"""The soak (`make soak`) in short, and proof that its checks can fail."""

from __future__ import annotations

import asyncio
import resource
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.kills.logs import Log, Page, now_ms
from tests.faults.kills.server import Connection, Request, Violation
from tests.faults.soak import __main__ as command
from tests.faults.soak.alerts import Fault, Firing, Prometheus, judge
from tests.faults.soak.faults import Faults
from tests.faults.soak.flows import ConsumerPart, Reader
from tests.faults.soak.logs import LogPart
from tests.faults.soak.masses import MassPart, most_idle
from tests.faults.soak.queues import Job, QueuePart
from tests.faults.soak.target import Client, Sample, Target
from tests.faults.soak.watchers import View, WatchPart


def test_short_soak_with_a_kill_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path), "--seconds", "5", "--restart", "4", "--seed", "3", "--faults", "slow", "--idle", "50"]
    assert command.main(words) == 0, capsys.readouterr().out
    report = capsys.readouterr().out
    assert "soak: PASSED" in report
    assert "1 kills" in report
    assert "faults: slow at" in report
    assert "p99 ms" in report
    assert "50 idle connections" in report
    assert "mass topics" in report
    assert list(tmp_path.iterdir()) == []


def test_each_fault_is_injected_and_survived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(tmp_path), "--seconds", "16", "--seed", "4", "--faults", "full,stop,clock,unread", "--only"]
    assert command.main([*words, "work,capped,look,mass"]) == 0, capsys.readouterr().out
    report = capsys.readouterr().out
    assert "expected checkpoint failed" in report, "no write met the full disk"
    for name in ("full", "stop", "clock", "unread"):
        assert f"1 fault {name}" in report


def test_unknown_fault_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown faults flood; there are full, slow"):
        Faults(target(tmp_path), names="slow,flood")


def test_alerts_are_judged_by_the_fault_that_explains_them() -> None:
    faults = [Fault("full", 100, 200), Fault("kill", 300, 310), Fault("slow", 400, 1000)]
    fired = [
        Firing("TopicsReadOnly", "", 150),
        Firing("TopicsDown", "", 50),
        Firing("TopicsRecordsLost", "reason=cap", 305),
    ]
    assert judge(faults, fired) == (
        ["TopicsReadOnly at 150 s"],
        ["TopicsDown at 50 s", "TopicsRecordsLost reason=cap at 305 s"],
        ["TopicsSlowSync of slow at 400 s"],
    )


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: prometheus)")
def test_prometheus_of_the_soak_fires_shipped_alerts(tmp_path: Path) -> None:
    """Nothing listens at its target."""
    found = Prometheus(tmp_path / "prometheus")
    found.start(1, interval="1s")

    async def run() -> None:
        looks = asyncio.create_task(found.look())
        async with asyncio.timeout(100):
            while not found.fired:
                await asyncio.sleep(0.1)
        looks.cancel()

    try:
        asyncio.run(run())
    finally:
        found.stop()
    assert [one.alert for one in found.fired] == ["TopicsDown"]


def test_deleted_topic_that_is_there_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = MassPart(target(tmp_path), Random(1), per_s=1)

    async def must(method: str, path: str) -> Any:
        return {"topics": [{"topic": "mass-7"}]}

    monkeypatch.setattr(part.client, "must", must)
    with pytest.raises(Violation, match=r"deleted topics are there: \['mass-7'\]"):
        asyncio.run(part.check())


def test_idle_connections_leave_descriptors_for_the_rest() -> None:
    assert most_idle(10) == 10
    assert most_idle(1 << 40) < resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_wrong_answer_ends_the_soak_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(self: WatchPart) -> None:
        raise Violation("a record is lost")

    monkeypatch.setattr(WatchPart, "round", wrong)
    assert command.main([str(tmp_path), "--seconds", "1", "--seed", "3", "--only", "live"]) == 1
    report = capsys.readouterr().out
    assert "soak: FAILED: wrong answer: a record is lost" in report
    assert "--seed 3 --seconds 1 --sync-ms 60 --restart 0 --only live" in report
    assert [path.name for path in tmp_path.glob("soak-*/log")] == ["log"]


def target(tmp_path: Path) -> Target:
    return Target(tmp_path, sync_ms=0)


def test_errors_in_the_log_are_counted(tmp_path: Path) -> None:
    found = target(tmp_path)
    (tmp_path / "log").write_text(
        '{"level":"info","event":"ready"}\n{"level":"error","event":"loop_error"}\nTraceback\n{"level":"err'
    )
    found.read_log()
    found.read_log()
    assert found.logged == {"loop_error": 1, "not a log line": 1}


@pytest.mark.parametrize(("late_mib", "grew"), [(100, False), (123, False), (125, True)])
def test_growing_memory_is_found(tmp_path: Path, late_mib: int, grew: bool) -> None:
    found = target(tmp_path)
    found.samples = [Sample(mib << 20, 9) for mib in (50, 50, 100, 100, 100, 100, late_mib, late_mib)]
    assert bool(found.growth()) is grew


@pytest.mark.parametrize(("status", "code", "fine"), [(500, "internal", False), (503, "not_ready", True)])
def test_undocumented_failures_are_found(tmp_path: Path, status: int, code: str, fine: bool) -> None:
    found = target(tmp_path)
    seen: list[int] = []
    done = Client(found)._counted(Request("GET", "/", None, lambda status, answer: seen.append(status)))
    if fine:
        done(status, {"error": {"code": code}})
    else:
        with pytest.raises(Violation, match="internal"):
            done(status, {"error": {"code": code}})
    assert found.errors == {code: 1}
    assert seen == [status] * fine


def view(tmp_path: Path) -> View:
    log = Log("live", target(tmp_path).tally)
    log.known = {1: "a", 2: "b"}
    return View("stream", log)


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("record", {"records": [{"$seq": 2, "data": "b"}]}),
        ("record", {"records": [{"$seq": 1, "data": "a"}, {"$seq": 1, "data": "a"}]}),
        ("record", {"records": [{"$seq": 1, "data": "b"}]}),
        ("tombstone", {"gap_from": 2, "gap_to": 2}),
    ],
)
def test_watcher_finds_wrong_events(tmp_path: Path, event: str, data: dict[str, Any]) -> None:
    with pytest.raises(Violation):
        view(tmp_path).take(event, data)


def test_watcher_accepts_records_after_a_tombstone(tmp_path: Path) -> None:
    seen = view(tmp_path)
    seen.take("tombstone", {"gap_from": 1, "gap_to": 1})
    seen.take("record", {"records": [{"$seq": 2, "data": "b"}]})
    assert (seen.seq, seen.count) == (2, 1)


def queue(tmp_path: Path, **fields: Any) -> tuple[QueuePart, Job]:
    part = QueuePart(target(tmp_path), Random(1), "work", durability="fsync", durable=True, most=3)
    job = part.jobs["job"] = Job("job", plain=True, at=0, seq=1, **fields)
    return part, job


def claimed(part: QueuePart, node: str, number: int, *, at_ms: int, gone: Any = (), lease_ms: int = 1000) -> Job:
    """Pass on the answer to a claim that was granted at `at_ms`."""
    row = {"data": "job", "$seq": 1, "deliveries": number, "deadline": at_ms + lease_ms}
    return part._claimed(node, row, set(gone), lease_ms=lease_ms)


@pytest.mark.parametrize(
    ("number", "at_ms", "gone", "message"),
    [
        (2, 2000, (), r"is held by Lease\(node='b'.* was given to Lease\(node='a'"),
        (1, 5000, (), "was delivered twice as number 1"),
        (2, 5000, ("job",), "was acked or deleted and is delivered"),
        (4, 5000, (), "was delivered 4 times"),
    ],
)
def test_wrong_claim_is_found(tmp_path: Path, number: int, at_ms: int, gone: Any, message: str) -> None:
    part, _ = queue(tmp_path)
    claimed(part, "b", 1, at_ms=1000)
    with pytest.raises(Violation, match=message):
        claimed(part, "a", number, at_ms=at_ms, gone=gone)


def test_claim_of_a_held_job_is_found_if_its_answer_comes_first(tmp_path: Path) -> None:
    part, _ = queue(tmp_path)
    claimed(part, "a", 2, at_ms=2000)
    with pytest.raises(Violation, match=r"is held by Lease\(node='b'"):
        claimed(part, "b", 1, at_ms=1000)


def test_claims_of_a_free_job_are_right_in_any_order(tmp_path: Path) -> None:
    part, job = queue(tmp_path)
    claimed(part, "a", 2, at_ms=2001)
    claimed(part, "b", 1, at_ms=1000)
    assert (job.deliveries, job.leases[2].node) == (2, "a")


class SlowClient(Connection):
    """A connection whose next request the test answers."""

    def __init__(self) -> None:
        self.asked, self.answer = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def must(self, method: str, path: str, body: Any = None) -> Any:
        self.asked.set()
        return await self.answer


class Nacking(Random):
    """Chooses to nack every job."""

    def random(self) -> float:
        return 0.9


def test_late_answers_do_not_change_the_lease_of_another_worker(tmp_path: Path) -> None:
    async def run() -> None:
        part, job = queue(tmp_path)
        part.rng, now = Nacking(), now_ms()
        claimed(part, "late", 1, at_ms=now - 2000)
        claimed(part, "next", 2, at_ms=now)
        late, own = SlowClient(), SlowClient()
        tasks = []
        for client, number in ((late, 1), (own, 2)):
            tasks.append(asyncio.create_task(part._deal_with(client, job, number)))
            await client.asked.wait()
        own.answer.set_result({"skipped": []})
        await tasks[1]
        late.answer.set_result({"skipped": [1]})
        await tasks[0]
        assert not job.held(now)
        claimed(part, "last", 3, at_ms=now + 1)

    asyncio.run(run())


def test_job_that_is_acked_twice_is_found(tmp_path: Path) -> None:
    async def run() -> None:
        part, job = queue(tmp_path)
        part.rng.random = lambda: 0.5  # type: ignore[method-assign]
        claimed(part, "a", 1, at_ms=1000)
        client = SlowClient()
        client.answer.set_result({"skipped": []})
        await part._deal_with(client, job, 1)
        with pytest.raises(Violation, match="was acked and is delivered again"):
            claimed(part, "b", 2, at_ms=5000)

    asyncio.run(run())


def test_lost_job_and_lost_lease_are_found(tmp_path: Path) -> None:
    part, job = queue(tmp_path)
    claimed(part, "a", 1, at_ms=now_ms(), lease_ms=1 << 40)
    with pytest.raises(Violation, match="was acknowledged and is lost"):
        part._locate(job, 0, dead=False)
    with pytest.raises(Violation, match="its request was skipped"):
        part._check_skipped(job, job.leases[1], {"skipped": [1]})
    job.deleted = True
    part._check_skipped(job, job.leases[1], {"skipped": [1]})


def test_lease_of_no_worker_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, _ = queue(tmp_path)

    async def must(method: str, path: str) -> Any:
        return {"count": 1, "queue": {"ready": 0, "in_flight": 1, "delayed": 0}}

    monkeypatch.setattr(part.client, "must", must)
    with pytest.raises(Violation, match="workers hold 0 to 0 jobs"):
        asyncio.run(part._check_state(1))


@pytest.mark.parametrize(
    "answer",
    [
        {"records": [{"$seq": 5, "data": "x"}], "next_from_seq": 5, "tombstone": None},
        {"records": [], "next_from_seq": 4, "tombstone": None},
        {"records": [], "next_from_seq": 5, "tombstone": {"gap_from": 4, "gap_to": 6, "reason": "cap"}},
    ],
)
def test_consumer_finds_gaps_that_are_not_reported(tmp_path: Path, answer: dict[str, Any]) -> None:
    part = ConsumerPart(target(tmp_path), Random(1))
    reader = Reader("c", hold=False)
    reader.seq = 3
    with pytest.raises(Violation):
        part._check_answer(reader, {"earliest_seq": 6, **answer})


def test_eviction_that_no_cap_asks_for_is_found(tmp_path: Path) -> None:
    part = LogPart(target(tmp_path), Random(1), "capped", cap_records=2)
    part.log.known = {1: "a", 2: "b", 3: "c"}
    part._evict()
    gap = {"gap_from": 1, "gap_to": 1}
    part._check_cap(Page(0, head=3, earliest=2, gaps=[gap]), 2)
    with pytest.raises(Violation, match="has 3 to 3, not from 2 on"):
        part._check_cap(Page(0, head=3, earliest=3, gaps=[{"gap_from": 1, "gap_to": 2}]), 2)
    with pytest.raises(Violation, match="tombstones"):
        part._check_cap(Page(0, head=3, earliest=2, gaps=[{"gap_from": 1, "gap_to": 2}]), 2)
