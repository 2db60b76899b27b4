"""What the server answered its clients, and what a restart may therefore show.

A `Client` drives a `SimServer` and writes down every attempt and its answer. `Ledger.check` then judges a server that
came back after a crash: every promise is kept, every record was sent by a client, and every seq is live, deleted or
reported as lost.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from tests.faults.syncs import Syncs
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer, request
from topics.engine.engine import Configured
from topics.engine.state.topic import Topic
from topics.engine.steps import run_all
from topics.engine.write.append import Appended
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model.records import TagMatch
from topics.model.topic import ConfigPatch
from topics.storage.segments.cold import waiting

Status = Literal["open", "acked", "refused"]


def has_failed_sync(disk: SimDisk) -> bool:
    """Return whether a sync of the log has failed, and no start has come since: see `When.failed_sync`."""
    return any(path.endswith("/SYNC_FAILED") for path in disk.files())


@dataclass
class Attempt:
    """A request and its outcome: "open" until the server answers, and for good if the server ends first."""

    status: Status = "open"
    synced: bool = False  # a change of the topic's class was answered after it, and is synced with all before

    @property
    def may_show(self) -> bool:
        """Return whether a server may show an effect of the request."""
        return self.status != "refused"

    def failed(self, error: TopicsError) -> None:
        """Record the error of the request. The request stays open unless the error says that nothing was done."""
        outcome = (error.detail or {}).get("outcome")
        if error.code is not Code.INTERNAL and outcome not in ("unsaved", "logged"):
            self.status = "refused"


@dataclass
class When:
    """The circumstances under which a server is judged."""

    mode: str = "none"
    failed_sync: bool = False  # a sync had failed: topics that are not `fsync` skip seqs, though nothing is lost

    @property
    def power(self) -> bool:
        return self.mode not in ("keep", "none", "damaged")

    @property
    def damaged(self) -> bool:
        """Return whether entries of the log are missing, which the start reports."""
        return self.mode == "damaged"


@dataclass
class Write(Attempt):
    payloads: list[str] = field(default_factory=list)
    tag: str | None = None
    key: str | None = None
    first: int = 0
    at_ms: int = 0


@dataclass
class Removal(Attempt):
    before_seq: int | None = None
    tag: str | None = None

    def covers(self, seq: int, tag: str | None) -> bool:
        return (self.before_seq is None or seq < self.before_seq) and (self.tag is None or tag == self.tag)


@dataclass
class Report(Attempt):
    """A report that an archive has all records up to `seq` and is about to delete half of them."""

    seq: int = 0

    @property
    def trimmed(self) -> int:
        return self.seq // 2


@dataclass
class TopicHistory:
    """All requests to one topic between its creation and its drop."""

    name: str
    durability: str  # of the last change that was answered
    created: Attempt
    by_append: bool
    changes: list[tuple[str, Attempt]] = field(default_factory=list)  # changes of the class that were requested since
    synced: bool = False  # whether a change of the class was answered
    epoch: int | None = None
    drops: list[Attempt] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    # values of cap_records that a restart may find, and the requests for them
    caps: list[tuple[int, Attempt]] = field(default_factory=lambda: [(0, Attempt("acked"))])
    evicts: bool = False
    head_kept: int = 0  # at the last checkpoint
    reports: list[Report] = field(default_factory=list)
    held: bool = False  # the topic holds records for its archive from its creation on
    lost: set[str] = field(default_factory=set)  # reasons of the losses that an earlier restart was judged with

    @property
    def classes(self) -> set[str]:
        """Return the classes that a server may show."""
        return {self.durability, *(durability for durability, attempt in self.changes if attempt.status != "refused")}

    def safe(self, *, power: bool) -> bool:
        """Return whether an answered write must survive."""
        return "ephemeral" not in self.classes and (self.durability == "fsync" or not power)

    def changed(self, durability: str, attempt: Attempt, answered: list[Attempt]) -> None:
        """Set the class. Requests answered before the change was sent are as safe as the new class."""
        asked = [id(one) for _, one in self.changes]
        if id(attempt) not in asked:
            return  # a later change was answered first
        self.durability, self.synced = durability, True
        self.changes = self.changes[asked.index(id(attempt)) + 1 :]
        for earlier in answered:
            earlier.synced = True

    def go_on(self, topic: Topic | None, rows: dict[str, int]) -> None:
        """Decide the requests without an answer by what a restarted server shows: `rows` are the seqs of payloads."""
        for dropped in self.drops:
            if dropped.status == "open":
                dropped.status = "refused" if topic else "acked"
        if self.created.status == "open":
            self.created.status = "acked" if topic else "refused"
        if topic is None:
            self.drops.append(Attempt("acked"))  # or its creation was lost: it must not come back
        else:
            self.epoch, self.durability, self.changes = topic.epoch, topic.config.durability, []
            self.caps = [(topic.config.cap_records, Attempt("acked"))]
            self.lost = {reason for _, _, reason in topic.losses.runs}
            self.writes = [write for write in self.writes if rows.keys() & set(write.payloads)]
            for write in self.writes:
                firsts = {rows[payload] - at for at, payload in enumerate(write.payloads) if payload in rows}
                assert len(firsts) == 1, "a write has its records at other seqs"
                write.status, write.first = "acked", min(firsts)
                for removal in self.removals:  # it may be lost if the class of the topic allows that
                    if any(removal.covers(rows[one], write.tag) for one in write.payloads if one in rows):
                        removal.status = "open"

    def acked(self) -> Iterator[tuple[int, str, Write]]:
        for write in self.writes:
            if write.status == "acked":
                for seq, payload in enumerate(write.payloads, write.first):
                    yield seq, payload, write

    def removable(self, seq: int, tag: str | None) -> bool:
        return any(removal.covers(seq, tag) for removal in self.removals if removal.may_show)


class Ledger:
    """All topics by name, each with its histories in order."""

    def __init__(self) -> None:
        self.histories: dict[str, list[TopicHistory]] = {}
        self.wrong: list[AssertionError] = []  # wrong answers, see `noting`

    def copy(self) -> Ledger:
        return copy.deepcopy(self)

    def current(self, name: str) -> TopicHistory | None:
        """Return the history that new requests belong to, or None if there is no topic."""
        histories = self.histories.get(name, [])
        if not histories or histories[-1].created.status == "refused":
            return None
        return None if any(dropped.status == "acked" for dropped in histories[-1].drops) else histories[-1]

    def go_on(self, server: SimServer) -> None:
        """Continue with a restarted server, after it was judged."""
        for name, histories in self.histories.items():
            topic = server.engine.topics.get(name)
            rows = {} if topic is None else {payload: seq for seq, payload in server.by_seq(name).items()}
            # The epoch of a creation without an answer is unknown.
            histories.sort(key=lambda history: topic is not None and (history.epoch == topic.epoch, not history.epoch))
            for history in histories:
                history.go_on(topic if history is histories[-1] else None, rows)

    def check(self, server: SimServer, mode: str, *, failed_sync: bool = False) -> None:
        """Judge a server that came back after a crash of this mode, or with mode "none" one that goes on."""
        raise_first(self.wrong)
        when = When(mode, failed_sync)
        for name, histories in self.histories.items():
            topic = server.engine.topics.get(name)
            if topic is None:
                for history in histories:
                    assert _may_be_absent(history, when), f"{name} is missing"
            else:
                known = [history for history in histories if history.epoch == topic.epoch]
                # The epoch of a creation without an answer is unknown: the topic may be any of these.
                candidates = known or [history for history in histories if history.epoch is None]
                assert candidates, f"{name}: no client created epoch {topic.epoch}"
                _judge_any(server, candidates, when)
        unknown = set(server.engine.topics) - set(self.histories)
        assert not unknown, f"no client created {unknown}"
        totals, topics = server.engine.state.totals, server.engine.topics.values()
        assert totals.records == sum(topic.count for topic in topics)
        assert totals.lost.total == sum(topic.losses.total for topic in topics)
        assert totals.bytes == sum(topic.bytes for topic in topics)
        if mode in ("keep", "lose", "tear"):
            assert server.recovered is not None
            assert server.recovered.damage == [], "nothing was damaged"

    def check_damaged(self, server: SimServer, *, found_by_readers: bool = False) -> None:
        """Judge a server with damaged files: missing records are reported, and no seq is given out again.

        The start reports damage to the log; damage to other files may be `found_by_readers` later.
        """
        assert server.recovered is not None
        if not server.recovered.damage and not found_by_readers:
            return self.check(server, "keep")
        when = When("damaged")
        for name, histories in self.histories.items():
            topic = server.engine.topics.get(name)
            if topic is None:
                assert all(_may_be_absent(history, when) for history in histories), f"{name} is missing"
            else:
                known = [history for history in histories if history.epoch == topic.epoch]
                assert known, f"{name}: no client created epoch {topic.epoch}"
                _judge_any(server, known, when)
        assert set(server.engine.topics) <= set(self.histories), "a topic that no client created"


def _judge_any(server: SimServer, histories: list[TopicHistory], when: When) -> None:
    """Raise unless the topic is what one of these histories may have left."""
    for history in histories[:-1]:
        try:
            return _Judge(server, history, when).judge()
        except AssertionError:
            continue
    _Judge(server, histories[-1], when).judge()


def _may_be_absent(history: TopicHistory, when: When) -> bool:
    if history.created.status != "acked":
        return True
    if any(dropped.may_show for dropped in history.drops):
        return True
    return when.power and history.by_append and history.durability != "fsync" and not history.synced


class _Judge:
    """Checks one topic of a restarted server."""

    def __init__(self, server: SimServer, history: TopicHistory, when: When) -> None:
        self.history = history
        self.when = when
        self.mode = when.mode
        self.power = when.power
        self.topic = waiting(lambda: server.engine.expire_and_get(history.name, touch=False))
        self.rows = server.by_seq(history.name)
        self.runs = self.topic.losses.runs
        self.lost = {seq: reason for low, high, reason in self.runs for seq in range(low, min(high, low + 9000) + 1)}

    def judge(self) -> None:
        history, topic = self.history, self.topic
        back = any(dropped.status == "acked" for dropped in history.drops)
        assert not back or self.when.damaged, "a dropped topic is back"
        assert history.created.may_show, "a refused topic is there"
        assert topic.config.durability in history.classes
        assert topic.config.cap_records in {cap for cap, attempt in history.caps if attempt.may_show}
        assert topic.count == len(self.rows)
        assert topic.earliest == min(self.rows, default=topic.head + 1)
        assert topic.next_seq == topic.head + 1
        assert topic.pending == topic.staged_count == topic.staged_bytes == 0
        self.promises()
        self.inventions()
        self.accounts()
        self.archive()

    def promises(self) -> None:
        history, safe = self.history, self.history.safe(power=self.power) or self.mode == "none"
        kept = "ephemeral" not in history.classes
        for seq, payload, write in history.acked():
            assert self.topic.head >= seq, f"{seq} can be given out again"
            if not (safe or (kept and write.synced)):
                continue
            if seq not in self.rows:
                gone = history.removable(seq, write.tag) or (history.evicts and self.lost.get(seq) in ("cap", "ttl"))
                gone |= self.when.damaged and self.lost.get(seq) == "corrupt"
                assert gone, f"{history.name}: {seq} was acknowledged and is not there"
            else:
                assert self.rows[seq] == payload
                if self.when.damaged:
                    continue  # the entry of a delete may be what is missing
                for removal in history.removals if safe else filter(lambda one: one.synced, history.removals):
                    assert removal.status != "acked" or not removal.covers(seq, write.tag), f"{seq} was deleted"
            window_ms = self.topic.config.idempotency_window_ms
            is_over = any(later.at_ms - write.at_ms > window_ms for later in history.writes)  # such a write forgets it
            if write.key is not None and not self.when.damaged and not is_over:
                known = self.topic.keys.get(write.key)
                assert known is not None, f"the key {write.key} was forgotten"
                assert known.first == write.first
        if self.topic.config.durability == "ephemeral" and self.mode != "none":
            assert not self.rows, "an ephemeral topic kept records"
            assert self.topic.head >= history.head_kept

    def inventions(self) -> None:
        known = {payload: write for write in self.history.writes for payload in write.payloads}
        assert len(set(self.rows.values())) == len(self.rows), "a record is there twice"
        for seq, payload in self.rows.items():
            assert payload in known, f"no client wrote {payload}"
            write = known[payload]
            assert write.may_show, f"{payload} was refused and is there"
            if write.status == "acked":
                assert seq == write.first + write.payloads.index(payload)

    def archive(self) -> None:
        """Check the archive mark, and that a topic that holds has evicted archived records only."""
        archived = self.topic.archived
        assert archived <= self.topic.head
        assert archived in {0, *(report.seq for report in self.history.reports)}
        acked = max((report.seq for report in self.history.reports if report.status == "acked"), default=0)
        assert self.topic.trimmed in {0, *(report.trimmed for report in self.history.reports)}
        if not self.when.damaged and (self.history.safe(power=self.power) or self.mode == "none"):
            assert archived >= acked, "what was archived has been forgotten"
            assert self.topic.trimmed >= acked // 2, "what was trimmed has been forgotten"
        if self.history.held:
            reported = max((report.seq for report in self.history.reports), default=0)
            taken = [seq for seq, reason in self.lost.items() if reason in ("cap", "ttl")]
            assert all(seq <= reported for seq in taken), "a held record is gone"

    def accounts(self) -> None:
        """Every seq up to the head is live, deleted, or in the range of a loss."""
        tags = {seq: write.tag for seq, _, write in self.history.acked()}
        covered = set(self.rows) | set(self.lost)
        assert not set(self.rows) & set(self.lost)
        for seq in range(1, min(self.topic.head, 9000) + 1):
            assert (
                seq in covered
                or self.history.removable(seq, tags.get(seq))
                or (seq not in tags and self.history.removals)
            ), seq
        allowed = self.history.lost | ({"cap", "ttl"} if self.history.evicts else set())
        if "ephemeral" in self.history.classes or self.power or self.when.failed_sync:
            allowed.add("restart")
        if self.mode in ("reorder", "zero", "damaged"):
            allowed.add("corrupt")
        assert {reason for _, _, reason in self.runs} <= allowed, self.runs


@contextmanager
def noting(wrong: list[AssertionError]) -> Iterator[None]:
    """Note a failed assertion: the exception of a callback is logged, and would not reach the test."""
    try:
        yield
    except AssertionError as error:
        wrong.append(error)


def raise_first(wrong: list[AssertionError]) -> None:
    if wrong:
        raise wrong[0]


class Client:
    """All clients of one server. Payloads are numbers, each used once. `syncs` is the thread that syncs its log."""

    def __init__(self, server: SimServer, ledger: Ledger | None = None, syncs: Syncs | None = None) -> None:
        self.server = server
        self.ledger = ledger or Ledger()
        self.syncs = Syncs() if syncs is None else syncs  # an idle worker is false
        self._number = 0

    @classmethod
    def on(cls, disk: SimDisk) -> Client:
        """Return the clients of a server that is not open yet, and whose syncs can be slow."""
        syncs = Syncs()
        return cls(SimServer(disk, sync_worker=syncs), syncs=syncs)

    def put(self, name: str, **config: Any) -> None:
        history = self._current(name)
        attempt = Attempt()
        caps = config.get("cap_records")
        if history is None:
            history = TopicHistory(name, config.get("durability", "disk"), attempt, False)
            history.caps = [(caps or 0, attempt)]
            history.held = bool(config.get("archive"))
            self.ledger.histories.setdefault(name, []).append(history)
        elif caps is not None:
            history.caps = [*history.caps, (caps, attempt)]
        history.evicts |= bool(caps or config.get("ttl_ms"))
        durability = config.get("durability", history.durability)
        changes = history.created is not attempt and history.classes != {durability}
        before: list[Attempt] = []
        topic = self.server.engine.topics.get(name)
        if topic is not None and topic.config.durability != durability:  # otherwise the log has no entry for the change
            before += [one for one in (*history.writes, *history.removals) if one.status == "acked"]
        if changes:
            history.changes.append((durability, attempt))

        def answered(result: Configured) -> None:
            history.epoch = result.topic.epoch
            asked = [id(one) for _, one in history.caps]
            if caps is not None and id(attempt) in asked:  # else a later change was answered first
                history.caps = history.caps[asked.index(id(attempt)) :]
            if changes:
                history.changed(durability, attempt, before)

        self._follow(attempt, lambda: self.server.engine.put_topic(name, ConfigPatch(**config)), answered)

    def append(self, name: str, n: int = 1, *, size: int = 0, tag: str | None = None, key: str | None = None,
               flush: bool = True, in_steps: bool = False, **config: Any) -> Write:  # fmt: skip
        payloads = []
        for _ in range(n):
            self._number += 1
            payloads.append(f'"{self._number:04d}{"x" * size}"')
        write = Write(payloads=payloads, tag=tag, key=key, at_ms=self.server.clock.now_ms())
        history = self._current(name)
        if history is None:
            history = TopicHistory(name, config.get("durability", "disk"), write, True)
            self.ledger.histories.setdefault(name, []).append(history)
        history.writes.append(write)

        def answered(result: Appended) -> None:
            assert not result.deduped
            history.epoch, write.first = result.topic.epoch, result.first

        engine, wanted = self.server.engine, request(*payloads, tag=tag, key=key, **config)

        def stage() -> Ticket:
            blob = run_all(engine.prepare_append(name, wanted)) if in_steps else None
            return engine.append(name, wanted, blob)

        self._follow(write, stage, answered, flush)
        return write

    def delete(self, name: str, *, before_seq: int | None = None, tag: str | None = None) -> None:
        history = self._current(name)
        assert history is not None
        head = self.server.engine.topic(name).next_seq
        removal = Removal(before_seq=head if before_seq is None else min(before_seq, head), tag=tag)
        history.removals.append(removal)
        match = None if tag is None else TagMatch("Eq", tag)
        self._follow(
            removal, lambda: run_all(self.server.engine.delete_records(name, before_seq=before_seq, match=match))
        )

    def archive(self, name: str, *, behind: int = 0) -> None:
        """Report that an archive has all but the last `behind` records."""
        history = self._current(name)
        assert history is not None
        topic = self.server.engine.topic(name)
        engine, report = self.server.engine, Report(seq=max(topic.head - behind, 0))
        history.reports.append(report)
        self._follow(
            report, lambda: engine.report_archived(name, seq=report.seq, epoch=topic.epoch, trimmed=report.trimmed)
        )

    def drop(self, name: str) -> None:
        history = self._current(name)
        assert history is not None
        attempt = Attempt()
        history.drops.append(attempt)
        self._follow(attempt, lambda: self.server.engine.drop_topic(name))

    def checkpoint(self, *, hold_after: int | None = None) -> None:
        """Take a checkpoint, or begin one that is held after so many topics."""
        self.server.steps.release()
        heads = {name: topic.head for name, topic in self.server.engine.topics.items()}

        def done(error: Exception | None) -> None:
            if error is None:
                for name, head in heads.items():
                    if (history := self.ledger.current(name)) is not None:
                        history.head_kept = head

        if hold_after is None:
            self.server.store.checkpoint(done)
        else:
            self.server.begin_checkpoint(topics=hold_after, done=done)

    def _current(self, name: str) -> TopicHistory | None:
        """Return the history that a request belongs to, after a pending drop or creation has ended."""
        self.server.engine.find(name)
        return self.ledger.current(name)

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
                with noting(self.ledger.wrong):
                    answered(ticket.result)
                attempt.status = "acked"

        try:
            waiting(verb).on_done(done)
        except (TopicsError, OSError):  # nothing was staged; a server answers `internal` to an OSError
            attempt.status = "refused"
        if flush:
            self.server.engine.flush()
