"""Random histories of a queue, compared with the reference model: workers crash, stall, ack late or twice; restarts.

No job is lost, acked twice or leased twice at once; all counts are exact after every step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.queues.harness import QUEUE, Workshop, deliveries, job, seqs
from tests.reference.oracle_queue import QueueOracle
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.model.records import TagMatch, Unique, WriteRequest
from topics.model.topic import Rate

NODES = ["a", "b", "c"]
DEAD = "jobs.dead"


@dataclass
class Step:
    verb: str
    args: dict[str, Any]


nodes = st.sampled_from(NODES)
picks = st.lists(st.integers(0, 30), min_size=1, max_size=5)


def step(verb: str, **args: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    return st.builds(Step, st.just(verb), st.fixed_dictionaries(args))


terms = st.fixed_dictionaries(
    {
        "tag": st.sampled_from([None, None, "x", "y"]),
        "priority": st.sampled_from([None, None, None, 0, 3, 9]),
        "delay_ms": st.sampled_from([None, None, None, 0, 50, 400]),
        "key": st.sampled_from([None, None, "k", "l"]),
    }
)
write = step("write", jobs=st.lists(terms, min_size=1, max_size=6))
unique = step("write_unique", key=st.sampled_from("uv"), for_=st.sampled_from(["pending", "pending", 150]))
claim = step("claim", node=nodes, max=st.sampled_from([1, 2, 5, 50]), lease_ms=st.sampled_from([100, 300, 1000]))
ack = step("ack", node=nodes, picks=picks, fenced=st.booleans())
delays, reasons = st.sampled_from([0, 0, 60, 500]), st.sampled_from(["", "a", "b"])
nack = step("nack", node=nodes, picks=picks, fenced=st.booleans(), delay_ms=delays, reason=reasons)
extend = step("extend", node=nodes, picks=picks, fenced=st.booleans(), lease_ms=st.sampled_from([100, 700]))
time = step("time", ms=st.sampled_from([0, 1, 50, 99, 100, 101, 301, 1001]))
trim = step("trim", before=st.integers(0, 40)) | step("untag", tag=st.sampled_from(["x", "y"]))
restart = step("restart", how=st.sampled_from(["stop", "keep", "lose", "tear", "reorder"])) | step("checkpoint")
end = step("move") | step("pause", paused=st.booleans())
steps = st.lists(
    st.one_of(write, write, unique, claim, claim, claim, ack, ack, ack, nack, extend, time, time, trim, restart, end),
    min_size=1,
    max_size=35,
)
configs = st.fixed_dictionaries(
    {
        "leases_durable": st.booleans(),
        "max_deliveries": st.sampled_from([0, 0, 1, 3]),
        "dead_letter": st.sampled_from([None, DEAD]),
        "cap_records": st.sampled_from([0, 0, 0, 12]),
        "ttl_ms": st.sampled_from([0, 0, 0, 700]),
        "max_in_flight": st.sampled_from([0, 0, 3]),
        "max_in_flight_per_key": st.sampled_from([0, 1, 1, 1, 2]),
        "rate": st.sampled_from([None, None, None, Rate(per_s=8, burst=3)]),
    }
)


class Pair:
    """The engine and its model, driven by the same steps."""

    def __init__(self, config: dict[str, Any], *, cold: bool) -> None:
        self.config = config
        self.cold = cold
        self.shop = Workshop(SimServer.start(SimDisk(cold=cold)), durability="fsync", **config)
        self.model = self.new_model()
        self.got: list[tuple[int, str]] = []  # all deliveries: seq and lease id

    def new_model(self) -> QueueOracle:
        dead_letter = self.config["dead_letter"] is not None
        limits = {name: self.config[name] for name in ("max_deliveries", "max_in_flight", "max_in_flight_per_key")}
        rate = self.config["rate"]
        limits["rate"] = None if rate is None else (rate.per_s, rate.burst)
        return QueueOracle(self.shop.clock, dead_letter=dead_letter, **limits)

    def play(self, one: Step) -> None:
        getattr(self, one.verb)(**one.args)
        self.compare()

    # --- steps

    def write(self, jobs: list[dict[str, Any]]) -> None:
        now = self.shop.clock.now_ms()
        for seq, asked in zip(self.shop.write(*(job(**asked) for asked in jobs)), jobs, strict=True):
            self.model.written(
                seq, priority=asked["priority"] or 0, not_before_ms=now + (asked["delay_ms"] or 0), key=asked["key"]
            )

    def write_unique(self, key: str, for_: Any) -> None:
        self.sync()
        first = self.model.unique(key)
        request = WriteRequest([job(unique=Unique(key, for_), tag="x")])
        done = self.shop.done(self.shop.server.engine.append(QUEUE, request))
        assert done.deduped == bool(first)
        if first:
            assert done.first == first
        else:
            now = self.shop.clock.now_ms()
            self.model.written(done.first)
            self.model.uniques[key] = done.first, 0 if for_ == "pending" else now + for_

    def claim(self, node: str, max: int, lease_ms: int) -> None:
        self.sync()
        got = deliveries(self.shop.claim(node, max, lease_ms))
        now = self.shop.clock.now_ms()
        assert all(one.deadline_ms == now + lease_ms for one in got)
        self.model.claimed(node, max, got, self.buried() - self.model.dead)
        self.got += [(one.seq, one.lease_id) for one in got]

    def ack(self, node: str, picks: list[int], fenced: bool) -> None:
        named, lease_ids = self.named(picks, fenced)
        answer = self.shop.ack(node, *named, lease_ids=lease_ids)
        self.agree(answer.done, answer.skipped, named, self.model.ack(node, named, lease_ids))

    def nack(self, node: str, picks: list[int], fenced: bool, delay_ms: int, reason: str) -> None:
        named, lease_ids = self.named(picks, fenced)
        answer = self.shop.nack(node, *named, delay_ms=delay_ms, lease_ids=lease_ids, reason=reason)
        nacked = self.model.nack(node, named, lease_ids, delay_ms, reason)
        self.agree(answer.done, answer.skipped, named, nacked)
        if any(self.model.worn_out(seq) for seq in nacked):
            if self.cold:  # the nack does not wait for records that are only on the disk
                self.shop.move_exhausted()
            self.sync()
            self.model.moved(self.buried() - self.model.dead)

    def pause(self, paused: bool) -> None:
        self.shop.server.put(QUEUE, paused=paused)
        self.model.paused = paused

    def move(self) -> None:
        """Move exhausted jobs, as a server does several times a second."""
        self.sync()
        self.shop.move_exhausted()
        self.model.moved(self.buried() - self.model.dead)

    def extend(self, node: str, picks: list[int], fenced: bool, lease_ms: int) -> None:
        named, lease_ids = self.named(picks, fenced)
        answer = self.shop.extend(node, *named, lease_ms=lease_ms, lease_ids=lease_ids)
        self.agree(answer.done, answer.skipped, named, self.model.extend(node, named, lease_ids, lease_ms))

    def time(self, ms: int) -> None:
        self.shop.clock.advance(ms=ms)

    def trim(self, before: int) -> None:
        self.shop.server.delete(QUEUE, before_seq=before)

    def untag(self, tag: str) -> None:
        self.shop.server.delete(QUEUE, match=TagMatch("Eq", tag))

    def checkpoint(self) -> None:
        self.shop.server.checkpoint()

    def restart(self, how: str) -> None:
        self.sync()
        self.shop = self.shop.restart(how)
        self.model.clock = self.shop.clock
        self.model.restarted(leases_durable=self.config["leases_durable"])

    # --- looking

    def named(self, picks: list[int], fenced: bool) -> tuple[list[int], list[str] | None]:
        """Return some delivered jobs, the latest first: done, lost, leased by others; and some that never existed."""
        latest = self.got[::-1]
        chosen = [latest[at] if at < len(latest) else (at + 1, "lease_0") for at in picks]
        return [seq for seq, _ in chosen], [lease_id for _, lease_id in chosen] if fenced else None

    def agree(self, done: int, skipped: list[int], named: list[int], expected: list[int]) -> None:
        left = list(named)
        for seq in expected:
            left.remove(seq)
        assert (done, sorted(skipped)) == (len(expected), sorted(left))

    def live(self) -> set[int]:
        return set(self.shop.server.by_seq(QUEUE))

    def buried(self) -> set[int]:
        if DEAD not in self.shop.server.engine.topics:
            return set()
        rows = self.shop.server.walk(DEAD)[0]
        return {json.loads(row)["meta"]["$dead_letter_src_seq"] for row in rows}

    def sync(self) -> None:
        """Remove from the model the jobs that caps, TTL and deletes removed, and check the rest."""
        live = self.live()
        self.model.removed(set(self.model.jobs) - live)
        assert set(self.model.jobs) == live

    def compare(self) -> None:
        self.sync()
        model = self.model
        assert self.shop.counts == (model.ready, model.in_flight, model.delayed)
        assert self.shop.topic.count == len(model.jobs)
        assert self.shop.queue.dead_lettered == len(model.dead)
        for state, seqs_of in (("in_flight", self.shop.queue.leases), ("delayed", None), ("ready", None)):
            listed = seqs(self.shop.jobs(state, limit=1000)[0])
            assert len(listed) == getattr(model, state)
            assert seqs_of is None or listed == sorted(seqs_of)

    def finish(self) -> None:
        """Let all leases expire, then check that a last worker gets exactly the remaining jobs."""
        self.pause(False)
        for _ in range(200):
            self.shop.clock.advance(ms=1001)
            self.compare()
            if not self.model.jobs:
                break
            self.claim("last", 1000, 1000)
            held = [seq for seq, work in self.model.jobs.items() if work.hold and work.hold.node == "last"]
            if held:
                answer = self.shop.ack("last", *held)
                self.agree(answer.done, answer.skipped, held, self.model.ack("last", held, None))
        assert not self.model.jobs
        assert self.shop.counts == (0, 0, 0)


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(configs, steps, st.booleans())
def test_history_of_a_queue_matches_the_model(config: dict[str, Any], history: list[Step], cold: bool):
    played = Pair(config, cold=cold)
    for one in history:
        played.play(one)
    played.finish()
