"""What clients were told, and what a restart may therefore look like.

A `Client` drives a `SimServer` and writes down every attempt and its answer. `Ledger.check` then judges a server that
came back after a crash: whatever was promised must be there, whatever is there must have been attempted, and every seq
has a fate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from topics.engine.engine import Configured
from topics.engine.steps import run_all
from topics.engine.write.append import Appended
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.model.topic import ConfigPatch
from topics.testing.harness import SimServer, request

Status = Literal["open", "acked", "refused", "unknown"]


@dataclass
class Attempt:
    """A request and how it ended; "open" until an answer is there, and for ever if the crash was faster.

    "unknown" was refused, too, but the answer said that a power loss may bring it back.
    """

    status: Status = "open"
    synced: bool = False  # a change of the topic's class was answered after it, and is synced with all before

    def may_show(self, when: When) -> bool:
        """Whether a server may show any effect of it."""
        return self.status in ("open", "acked") or (self.status == "unknown" and when.may_return)

    def failed(self, error: TopicsError) -> None:
        """Note the error that the request ended with. Where it does not say that nothing was done, it stays open."""
        outcome = (error.detail or {}).get("outcome")
        if error.code is not Code.INTERNAL and outcome != "unsaved":
            self.status = "unknown" if outcome == "unknown" else "refused"


@dataclass
class When:
    """The moment at which a server is judged."""

    mode: str = "none"
    healed: bool = False  # the server lived on until its log was whole again
    fenced: bool = True  # what was refused has been erased from the log, so a killed process does not bring it back

    @property
    def power(self) -> bool:
        return self.mode not in ("keep", "none", "damaged")

    @property
    def damaged(self) -> bool:
        """Whether entries of the log are missing, which the start reports."""
        return self.mode == "damaged"

    @property
    def may_return(self) -> bool:
        """Whether writes may show whose refusal said that they could come back."""
        return not self.healed and self.mode != "none" and (self.power or not self.fenced)


@dataclass
class Write(Attempt):
    payloads: list[str] = field(default_factory=list)
    tag: str | None = None
    key: str | None = None
    first: int = 0


@dataclass
class Removal(Attempt):
    before_seq: int | None = None
    tag: str | None = None

    def covers(self, seq: int, tag: str | None) -> bool:
        return (self.before_seq is None or seq < self.before_seq) and (self.tag is None or tag == self.tag)


@dataclass
class Report(Attempt):
    """Somebody's archive is said to have everything up to `seq`, and to delete half of it."""

    seq: int = 0

    @property
    def trimmed(self) -> int:
        return self.seq // 2


@dataclass
class Life:
    """One topic from its creation to its drop."""

    name: str
    durability: str  # as the last answer said
    created: Attempt
    by_append: bool
    changes: list[tuple[str, Attempt]] = field(default_factory=list)  # other classes that were asked for since
    synced: bool = False  # whether a change of its class was answered
    epoch: int | None = None
    drops: list[Attempt] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    # values of cap_records that a restart may find, and who asked for them
    caps: list[tuple[int, Attempt]] = field(default_factory=lambda: [(0, Attempt("acked"))])
    evicts: bool = False
    head_kept: int = 0  # at the last checkpoint
    reports: list[Report] = field(default_factory=list)
    held: bool = False  # for its archive, from the beginning

    @property
    def classes(self) -> set[str]:
        """The classes that a server may show."""
        return {self.durability, *(durability for durability, attempt in self.changes if attempt.status != "refused")}

    def safe(self, *, power: bool) -> bool:
        """Whether an answered write must survive."""
        return "ephemeral" not in self.classes and (self.durability == "fsync" or not power)

    def changed(self, durability: str, attempt: Attempt, answered: list[Attempt]) -> None:
        """The class is `durability` now, and what was answered before that was asked for is as safe as that."""
        asked = [id(one) for _, one in self.changes]
        if id(attempt) not in asked:
            return  # a later change was answered first
        self.durability, self.synced = durability, True
        self.changes = self.changes[asked.index(id(attempt)) + 1 :]
        for earlier in answered:
            earlier.synced = True

    def acked(self) -> Iterator[tuple[int, str, Write]]:
        for write in self.writes:
            if write.status == "acked":
                for seq, payload in enumerate(write.payloads, write.first):
                    yield seq, payload, write

    def removable(self, seq: int, tag: str | None, when: When) -> bool:
        return any(removal.covers(seq, tag) for removal in self.removals if removal.may_show(when))


class Ledger:
    """All lives of all names, in order."""

    def __init__(self) -> None:
        self.lives: dict[str, list[Life]] = {}

    def copy(self) -> Ledger:
        return copy.deepcopy(self)

    def life(self, name: str) -> Life | None:
        """The life that new requests speak to."""
        lives = self.lives.get(name, [])
        if not lives or lives[-1].created.status in ("refused", "unknown"):
            return None
        return None if any(dropped.status == "acked" for dropped in lives[-1].drops) else lives[-1]

    def check(self, server: SimServer, mode: str, *, healed: bool = False, fenced: bool = True) -> None:
        """Judge a server that came back after a crash of this mode, or with mode "none" one that goes on."""
        when = When(mode, healed, fenced)
        for name, lives in self.lives.items():
            topic = server.engine.topics.get(name)
            if topic is None:
                for life in lives:
                    assert _may_be_absent(life, when), f"{name} is gone"
            else:
                known = [life for life in lives if life.epoch == topic.epoch]
                # of one that was never answered nobody knows the epoch: it may be any of those
                candidates = known or [life for life in lives if life.epoch is None]
                assert candidates, f"{name}: nobody made the life {topic.epoch}"
                _judge_any(server, candidates, when)
        strangers = set(server.engine.topics) - set(self.lives)
        assert not strangers, f"nobody made {strangers}"
        totals, topics = server.engine.state.totals, server.engine.topics.values()
        assert totals.records == sum(topic.count for topic in topics)
        assert totals.bytes == sum(topic.bytes for topic in topics)
        if mode in ("keep", "lose", "tear"):
            assert server.recovered is not None
            assert server.recovered.damage == [], "nothing was damaged"

    def check_damaged(self, server: SimServer) -> None:
        """Judge a server whose log was damaged before the start: what is missing is reported, and no seq is free."""
        assert server.recovered is not None
        if not server.recovered.damage:
            return self.check(server, "keep")
        when = When("damaged", healed=True)
        for name, lives in self.lives.items():
            topic = server.engine.topics.get(name)
            if topic is None:
                assert all(_may_be_absent(life, when) for life in lives), f"{name} is gone"
            else:
                known = [life for life in lives if life.epoch == topic.epoch]
                assert known, f"{name}: nobody made the life {topic.epoch}"
                _judge_any(server, known, when)
        assert set(server.engine.topics) <= set(self.lives), "a topic that nobody made"


def _judge_any(server: SimServer, lives: list[Life], when: When) -> None:
    """The topic must be what one of these lives may have left."""
    for life in lives[:-1]:
        try:
            return _Judge(server, life, when).judge()
        except AssertionError:
            continue
    _Judge(server, lives[-1], when).judge()


def _may_be_absent(life: Life, when: When) -> bool:
    if life.created.status != "acked":
        return True
    if any(dropped.may_show(when) for dropped in life.drops):
        return True
    return when.power and life.by_append and life.durability != "fsync" and not life.synced


class _Judge:
    """One topic that is there."""

    def __init__(self, server: SimServer, life: Life, when: When) -> None:
        self.life = life
        self.when = when
        self.mode = when.mode
        self.power = when.power
        self.topic = server.engine.expire_and_get(life.name, touch=False)
        self.rows = server.by_seq(life.name)
        self.runs = self.topic.losses.runs
        self.lost = {seq: reason for low, high, reason in self.runs for seq in range(low, min(high, 9000) + 1)}

    def judge(self) -> None:
        life, topic = self.life, self.topic
        back = any(dropped.status == "acked" for dropped in life.drops)
        assert not back or self.when.damaged, "a dropped topic is back"
        assert life.created.may_show(self.when), "a refused topic is there"
        assert topic.config.durability in life.classes
        assert topic.config.cap_records in {cap for cap, attempt in life.caps if attempt.may_show(self.when)}
        assert topic.count == len(self.rows)
        assert topic.earliest == min(self.rows, default=topic.head + 1)
        assert topic.next_seq == topic.head + 1
        assert topic.pending == topic.staged_count == topic.staged_bytes == 0
        self.promises()
        self.inventions()
        self.accounts()
        self.archive()

    def promises(self) -> None:
        life, safe = self.life, self.life.safe(power=self.power) or self.mode == "none"
        kept = "ephemeral" not in life.classes
        for seq, payload, write in life.acked():
            assert self.topic.head >= seq, f"{seq} is free again"
            if not (safe or (kept and write.synced)):
                continue
            if seq not in self.rows:
                gone = life.removable(seq, write.tag, self.when) or (
                    life.evicts and self.lost.get(seq) in ("cap", "ttl")
                )
                gone |= self.when.damaged and self.lost.get(seq) == "corrupt"
                assert gone, f"{life.name}: {seq} was acknowledged and is not there"
            else:
                assert self.rows[seq] == payload
                if self.when.damaged:
                    continue  # the entry of a delete may be what is missing
                for removal in life.removals if safe else filter(lambda one: one.synced, life.removals):
                    assert removal.status != "acked" or not removal.covers(seq, write.tag), f"{seq} was deleted"
            if write.key is not None and not self.when.damaged:
                known = self.topic.keys.get(write.key)
                assert known is not None, f"the key {write.key} was forgotten"
                assert known.first == write.first
        if self.topic.config.durability == "ephemeral" and self.mode != "none":
            assert not self.rows, "an ephemeral topic kept records"
            assert self.topic.head >= life.head_kept

    def inventions(self) -> None:
        known = {payload: write for write in self.life.writes for payload in write.payloads}
        assert len(set(self.rows.values())) == len(self.rows), "a record is there twice"
        for seq, payload in self.rows.items():
            assert payload in known, f"nobody wrote {payload}"
            write = known[payload]
            assert write.may_show(self.when), f"{payload} was refused and is there"
            if write.status == "acked":
                assert seq == write.first + write.payloads.index(payload)

    def archive(self) -> None:
        """What counts as archived was reported, and a topic that holds has lost nothing else to time and caps."""
        archived = self.topic.archived
        assert archived <= self.topic.head
        assert archived in {0, *(report.seq for report in self.life.reports)}
        acked = max((report.seq for report in self.life.reports if report.status == "acked"), default=0)
        assert self.topic.trimmed in {0, *(report.trimmed for report in self.life.reports)}
        if not self.when.damaged and (self.life.safe(power=self.power) or self.mode == "none"):
            assert archived >= acked, "what was archived has been forgotten"
            assert self.topic.trimmed >= acked // 2, "what was trimmed has been forgotten"
        if self.life.held:
            reported = max((report.seq for report in self.life.reports), default=0)
            taken = [seq for seq, reason in self.lost.items() if reason in ("cap", "ttl")]
            assert all(seq <= reported for seq in taken), "a held record is gone"

    def accounts(self) -> None:
        """Every seq up to the head is live, deleted, or in the range of a loss."""
        tags = {seq: write.tag for seq, _, write in self.life.acked()}
        covered = set(self.rows) | set(self.lost)
        assert not set(self.rows) & set(self.lost)
        for seq in range(1, min(self.topic.head, 9000) + 1):
            assert (
                seq in covered
                or self.life.removable(seq, tags.get(seq), self.when)
                or (seq not in tags and self.life.removals)
            ), seq
        allowed = {"cap", "ttl"} if self.life.evicts else set()
        if "ephemeral" in self.life.classes or self.power:
            allowed.add("restart")
        if self.mode in ("reorder", "zero", "damaged"):
            allowed.add("corrupt")
        assert {reason for _, _, reason in self.runs} <= allowed, self.runs


class Client:
    """Everybody who talks to a server. Payloads are numbers, each used once."""

    def __init__(self, server: SimServer, ledger: Ledger | None = None) -> None:
        self.server = server
        self.ledger = ledger or Ledger()
        self._number = 0

    def put(self, name: str, **config: Any) -> None:
        life = self._life(name)
        attempt = Attempt()
        caps = config.get("cap_records")
        if life is None:
            life = Life(name, config.get("durability", "disk"), attempt, False)
            life.caps = [(caps or 0, attempt)]
            life.held = bool(config.get("archive"))
            self.ledger.lives.setdefault(name, []).append(life)
        elif caps is not None:
            life.caps = [*life.caps, (caps, attempt)]
        life.evicts |= bool(caps or config.get("ttl_ms"))
        durability = config.get("durability", life.durability)
        changes = life.created is not attempt and life.classes != {durability}
        before: list[Attempt] = []
        topic = self.server.engine.topics.get(name)
        if topic is not None and topic.config.durability != durability:  # else nothing is written for it
            before += [one for one in (*life.writes, *life.removals) if one.status == "acked"]
        if changes:
            life.changes.append((durability, attempt))

        def answered(result: Configured) -> None:
            life.epoch = result.topic.epoch
            asked = [id(one) for _, one in life.caps]
            if caps is not None and id(attempt) in asked:  # else a later change was answered first
                life.caps = life.caps[asked.index(id(attempt)) :]
            if changes:
                life.changed(durability, attempt, before)

        self._follow(attempt, lambda: self.server.engine.put_topic(name, ConfigPatch(**config)), answered)

    def append(self, name: str, n: int = 1, *, size: int = 0, tag: str | None = None, key: str | None = None,
               flush: bool = True, **config: Any) -> Write:  # fmt: skip
        payloads = []
        for _ in range(n):
            self._number += 1
            payloads.append(f'"{self._number:04d}{"x" * size}"')
        write = Write(payloads=payloads, tag=tag, key=key)
        life = self._life(name)
        if life is None:
            life = Life(name, config.get("durability", "disk"), write, True)
            self.ledger.lives.setdefault(name, []).append(life)
        life.writes.append(write)

        def answered(result: Appended) -> None:
            assert not result.deduped
            life.epoch, write.first = result.topic.epoch, result.first

        engine = self.server.engine
        self._follow(
            write, lambda: engine.append(name, request(*payloads, tag=tag, key=key, **config)), answered, flush
        )
        return write

    def delete(self, name: str, *, before_seq: int | None = None, tag: str | None = None) -> None:
        life = self._life(name)
        assert life is not None
        head = self.server.engine.topic(name).next_seq
        removal = Removal(before_seq=head if before_seq is None else min(before_seq, head), tag=tag)
        life.removals.append(removal)
        match = None if tag is None else TagMatch("Eq", tag)
        self._follow(
            removal, lambda: run_all(self.server.engine.delete_records(name, before_seq=before_seq, match=match))
        )

    def archive(self, name: str, *, behind: int = 0) -> None:
        """Somebody has archived everything but the last `behind` records."""
        life = self._life(name)
        assert life is not None
        topic = self.server.engine.topic(name)
        engine, report = self.server.engine, Report(seq=max(topic.head - behind, 0))
        life.reports.append(report)
        self._follow(
            report, lambda: engine.archives.report(name, seq=report.seq, epoch=topic.epoch, trimmed=report.trimmed)
        )

    def drop(self, name: str) -> None:
        life = self._life(name)
        assert life is not None
        attempt = Attempt()
        life.drops.append(attempt)
        self._follow(attempt, lambda: self.server.engine.drop_topic(name))

    def checkpoint(self) -> None:
        heads = {name: topic.head for name, topic in self.server.engine.topics.items()}

        def done(error: Exception | None) -> None:
            if error is None:
                for name, head in heads.items():
                    if (life := self.ledger.life(name)) is not None:
                        life.head_kept = head

        self.server.store.checkpoint(done)

    def _life(self, name: str) -> Life | None:
        """The life that a request speaks to. A drop or a creation that is under way ends first, as for any verb."""
        self.server.engine.find(name)
        return self.ledger.life(name)

    def _follow(
        self,
        attempt: Attempt,
        verb: Callable[[], Ticket],
        answered: Callable[[Any], None] = lambda result: None,
        flush: bool = True,
    ) -> None:
        def done(ticket: Ticket) -> None:
            if ticket.error is not None:
                attempt.failed(ticket.error)
            else:
                answered(ticket.result)
                attempt.status = "acked"

        try:
            verb().on_done(done)
        except (TopicsError, OSError):  # before anything was staged: a server answers an OSError with `internal`
            attempt.status = "refused"
        if flush:
            self.server.engine.flush()
