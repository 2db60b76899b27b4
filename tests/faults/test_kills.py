"""The endless kill run (`make kills`) in small, and proof that its checks can fail."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.faults.kills import run
from tests.faults.kills.jobs import Jobs
from tests.faults.kills.logs import Log, Page, Sieve, now_ms
from tests.faults.kills.rising import Rising
from tests.faults.kills.rounds import Rounds
from tests.faults.kills.server import Request, Violation


def append(log: Log, *, first: int | None, n: int = 1, tag: str | None = None) -> list[str]:
    """Write `n` records; the server acknowledges them from `first` on, or never answers."""
    request = log.write(Random(1), n=n, tag=tag)
    if first is not None:
        request.done(200, {"first_seq": first, "deduped": False})
    return [record["data"] for record in request.body["records"]]


def page(rows: dict[int, str], *, head: int, earliest: int = 1, gaps: Any = ()) -> Page:
    found = {seq: {"data": data, "$ts": now_ms()} for seq, data in rows.items()}
    return Page(0, found, list(gaps), head=head, earliest=earliest, asked_ms=now_ms())


def log(**config: Any) -> Log:
    return Log("log", Counter(), **config)


def test_runs_add_up_in_the_state_file(tmp_path: Path) -> None:
    words = [str(tmp_path), "--kills", "3", "--seed", "3"]
    assert [run.main(words), run.main(words)] == [0, 0]
    totals = json.loads((tmp_path / "kills.json").read_text())
    assert totals["runs"] == 2
    assert totals["kills"] >= 6
    assert sum(totals["kills_by_commit"].values()) == totals["kills"]
    assert totals["losses"] == 0
    assert totals["acknowledged"] > 0
    assert totals["checked"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kills.json", "lock"]


def test_lost_data_directory_is_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Rounds.one

    async def one(self: Rounds, *, everything: bool = False) -> None:
        await original(self, everything=True)
        shutil.rmtree(tmp_path / next(tmp_path.glob("work-*")) / "data")

    monkeypatch.setattr(Rounds, "one", one)
    assert run.main([str(tmp_path), "--kills", "9", "--seed", "3"]) == 1
    assert json.loads((tmp_path / "kills.json").read_text())["losses"] >= 1
    [kept, *_] = tmp_path.glob("loss-*")
    assert (kept / "message").read_text()
    assert (kept / "log").exists()


def test_whole_topic_passes() -> None:
    topic = log()
    [first] = append(topic, first=1)
    second, third = append(topic, first=None, n=2)
    topic.check(page({1: first, 2: second, 3: third}, head=3))
    assert topic.known == {1: first, 2: second, 3: third}


def test_lost_record_is_found() -> None:
    topic = log()
    [first], _ = append(topic, first=1), append(topic, first=2)
    with pytest.raises(Violation, match="seq 2 was acknowledged and is lost"):
        topic.check(page({1: first}, head=2))
    with pytest.raises(Violation, match="the head is 1, 2 was acknowledged"):
        topic.check(page({1: first}, head=1))


def test_seq_given_out_twice_is_found() -> None:
    topic = log()
    append(topic, first=1, n=2)
    with pytest.raises(Violation, match="seq 2 was given to"):
        append(topic, first=2)


def test_record_at_another_seq_is_found() -> None:
    topic = log()
    [first] = append(topic, first=1)
    with pytest.raises(Violation, match="is there twice"):
        topic.check(page({1: first, 2: first}, head=2))


def test_torn_batch_is_found() -> None:
    topic = log()
    first, _ = append(topic, first=None, n=2)
    with pytest.raises(Violation, match="a batch was torn"):
        topic.check(page({1: first}, head=1))


def test_unreported_gap_is_found() -> None:
    topic = log()
    [first] = append(topic, first=2)
    with pytest.raises(Violation, match="seq 1 is neither there nor reported"):
        topic.check(page({2: first}, head=2, earliest=2))


def test_record_that_appears_late_is_found() -> None:
    topic = log()
    [late] = append(topic, first=None)
    topic.check(page({}, head=0))
    with pytest.raises(Violation, match="absent once"):
        topic.check(page({1: late}, head=1))


def test_deleted_record_that_returns_is_found() -> None:
    topic = log()
    [first] = append(topic, first=1, tag="red")
    topic.gone.add(1)
    with pytest.raises(Violation, match="1 was deleted and is back"):
        topic.check(page({1: first}, head=1))


def test_record_that_expires_early_is_found() -> None:
    topic = log(ttl_ms=60_000)
    append(topic, first=1)
    gap = {"reason": "ttl", "gap_to": 1}
    with pytest.raises(Violation, match="expired before its time"):
        topic.check(page({}, head=1, earliest=2, gaps=[gap]))


def test_eviction_beyond_the_cap_is_found() -> None:
    topic = log(cap_records=2)
    append(topic, first=1, n=3)
    gap = {"reason": "cap", "gap_to": 3}
    with pytest.raises(Violation, match="more was evicted than the cap asks for"):
        topic.check(page({}, head=3, earliest=4, gaps=[gap]))


def queue() -> tuple[Jobs, str]:
    """A queue with one job."""
    jobs = Jobs("work", Counter(), durability="fsync", leases_durable=True)
    request: Request = jobs._produce(Random(1), 1)
    request.done(200, {"first_seq": 1})
    return jobs, request.body["records"][0]["data"]


def claim(jobs: Jobs, payload: str, lease_id: str, node: str = "a") -> None:
    row = {"$seq": 1, "data": payload, "lease_id": lease_id, "deadline": now_ms() + 60_000,
           "deliveries": jobs.queue.jobs[payload].deliveries + 1 if payload in jobs.queue.jobs else 1}  # fmt: skip
    jobs._claim(node, 1, 60_000).done(200, {"claimed": [row]})


def test_job_that_two_workers_hold_is_found() -> None:
    jobs, payload = queue()
    claim(jobs, payload, "lease_1")
    with pytest.raises(Violation, match="is held by a and was given to b"):
        claim(jobs, payload, "lease_2", node="b")


def test_job_before_another_one_of_its_key_is_found() -> None:
    jobs, first = queue()
    second = jobs._produce(Random(1), 1).body["records"][0]["data"]
    for seq, payload in enumerate((first, second), 1):
        jobs.queue.jobs[payload].key, jobs.queue.jobs[payload].seq = "k", seq
    row = {"$seq": 2, "data": second, "lease_id": "lease_1", "deadline": now_ms() + 60_000, "deliveries": 1}
    jobs._claim("a", 1, 60_000).done(200, {"claimed": [row]})
    with pytest.raises(Violation, match="is in the queue, and 2 of its key came before it"):
        claim(jobs, first, "lease_2")


def test_acked_job_that_returns_is_found() -> None:
    jobs, payload = queue()
    claim(jobs, payload, "lease_1")
    jobs._ack("a", jobs.queue.held_by("a", now_ms())).done(200, {"skipped": []})
    with pytest.raises(Violation, match="was acked and is given out"):
        claim(jobs, payload, "lease_2")


def test_lost_lease_is_found() -> None:
    jobs, payload = queue()
    claim(jobs, payload, "lease_1")
    with pytest.raises(Violation, match="its request was refused"):
        jobs._extend("a", jobs.queue.held_by("a", now_ms()), 5_000).done(200, {"skipped": [1], "deadlines": {}})


def test_lost_job_is_found() -> None:
    jobs, payload = queue()
    with pytest.raises(Violation, match="was acknowledged and is lost"):
        jobs._check_job(jobs.queue.jobs[payload], {})


def test_keyed_write_that_is_done_twice_is_found() -> None:
    topic = log()
    write = topic.write(Random(1), keyed=True)
    write.done(200, {"first_seq": 1, "deduped": False})
    again = next(
        retry for retry in (topic.write(Random(seed), keyed=True) for seed in range(99)) if retry.body == write.body
    )
    with pytest.raises(Violation, match="and written again"):
        again.done(200, {"first_seq": 1, "deduped": False})


def test_answers_to_a_keyed_write_may_change_places() -> None:
    topic = log()
    write = topic.write(Random(1), keyed=True)
    same = next(
        retry for retry in (topic.write(Random(seed), keyed=True) for seed in range(99)) if retry.body == write.body
    )
    same.done(200, {"first_seq": 1, "deduped": True})
    write.done(200, {"first_seq": 1, "deduped": False})


def test_ephemeral_seq_given_out_again_is_found() -> None:
    topic = log(durability="ephemeral")
    append(topic, first=1, n=2)
    topic.check(page({}, head=2, earliest=3, gaps=[{"reason": "restart", "gap_to": 2}]))
    with pytest.raises(Violation, match="seq 2 was given to"):
        append(topic, first=2)


def test_copy_in_the_wrong_order_or_place_is_found() -> None:
    source = log()
    first, second = append(source, first=1, n=2)
    with pytest.raises(Violation, match="2 is record 1 of the source, after 2"):
        Sieve("copy", source, Counter()).check(page({1: second, 2: first}, head=2))
    sieve = Sieve("copy", source, Counter())
    sieve.check(page({1: first}, head=1))
    with pytest.raises(Violation, match="1 was log"):
        sieve.check(page({1: second}, head=1))


def turn(topic: Rising, durability: str) -> None:
    """Change the class; the server acknowledges it."""
    requests = (topic.turn(Random(seed)) for seed in range(99))
    next(request for request in requests if request.body["durability"] == durability).done(200, {})


@pytest.mark.parametrize("durability", ["fsync", "ephemeral"])
def test_loss_after_leaving_ephemeral_is_found(durability: str) -> None:
    topic = Rising("rising", Counter())
    turn(topic, "ephemeral")
    append(topic, first=1)
    turn(topic, durability)
    topic.killed()
    empty = page({}, head=4096, earliest=4097, gaps=[{"reason": "restart", "gap_to": 4096}])
    if durability == "ephemeral":
        topic.check_class(empty, durability)
    else:
        with pytest.raises(Violation, match="had left `ephemeral`"):
            topic.check_class(empty, durability)
