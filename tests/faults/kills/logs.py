"""Topics under load: what was acknowledged, and whether a restarted server still answers it.

The vocabulary is that of `tests.faults.ledger`; what differs is that answers come over HTTP and that a check reads only
what was written since the last one, unless it is asked for everything.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.faults.kills.server import Connection, Request, Violation, require
from tests.faults.ledger import Attempt, Removal, TopicHistory, Write

REFUSED = (422, 429, 503)  # full, busy, not ready yet: nothing was written
TAGS = ("red", "green", "blue")
PAGE = 1000
Tally = Counter[str]


class Clock:
    """How far the time of the server may differ from that of this process, because a test sets the clock of one."""

    doubt_ms = 0


clock = Clock()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Page:
    """Everything a topic answers from one seq on."""

    low: int  # the seq that the read began after
    rows: dict[int, Any] = field(default_factory=dict)
    gaps: list[dict[str, Any]] = field(default_factory=list)
    head: int = 0
    earliest: int = 0
    epoch: int = 0
    asked_ms: int = 0


async def read(connection: Connection, name: str, low: int) -> Page:
    """Follow the cursor from `low` to the head."""
    page = Page(low, asked_ms=now_ms())
    at = low
    while True:
        body = {"from_seq": at, "limit": PAGE, "include_tags": True}
        answer = await connection.must("POST", f"/v0/topics/{name}/diff", body)
        require(answer["next_from_seq"] > at or answer["caught_up"], f"{name}: a reader is stuck at {at}")
        if answer["tombstone"] is not None:
            require(answer["tombstone"]["gap_from"] == at + 1, f"{name}: read from {at}, got {answer['tombstone']}")
            page.gaps.append(answer["tombstone"])
        for row in answer["records"]:
            require(row["$seq"] > at, f"{name}: {row['$seq']} after {at}")
            at = row["$seq"]
            page.rows[at] = row
        at = answer["next_from_seq"]
        if answer["caught_up"]:
            page.head, page.earliest, page.epoch = answer["head_seq"], answer["earliest_seq"], answer["epoch"]
            return page


@dataclass
class SeqRemoval(Removal):
    """A delete of some seqs."""

    seqs: frozenset[int] = frozenset()

    def covers(self, seq: int, tag: str | None) -> bool:
        return seq in self.seqs


class Log:
    """One topic of one epoch: the promises that were made about it."""

    def __init__(self, name: str, tally: Tally, **config: Any) -> None:
        self.name = name
        self.config = {"idempotency_window_ms": 86_400_000, **config}
        self.history = TopicHistory(name, str(config.get("durability", "disk")), Attempt(), by_append=False)
        self.known: dict[int, str] = {}  # acknowledged, or read after a restart
        self.seq_of: dict[str, int] = {}
        self.tags: dict[int, str | None] = {}
        self.sent_ms: dict[int, int] = {}
        self.gone: set[int] = set()  # deleted for certain
        # What may take records away besides deletes, as tombstones name it.
        self._evicts = "ttl" if "ttl_ms" in config else "cap" if "cap_records" in config else ""
        if config.get("discard") == "reject":
            self._evicts = ""
        if self.history.durability == "ephemeral":
            self._evicts = "restart"
        self.checked = 0
        self.earliest = 1
        self.retries: deque[Write] = deque(maxlen=8)  # keyed writes, whatever became of them
        self._open: list[tuple[Write, int]] = []
        self._maybe: list[Removal] = []  # deletes without an answer
        self._never: set[str] = set()
        self._tally = tally
        self._number = 0

    # --- load ---

    def write(self, rng: Random, *, n: int = 1, tag: str | None = None, keyed: bool = False) -> Request:
        """Append `n` new records; with `keyed`, sometimes send an earlier keyed write once more."""
        if keyed and self.retries and rng.random() < 0.3:
            write = self.retries.popleft()
        else:
            first, self._number = self._number, self._number + n
            fill = "x" * rng.choice((0, 0, 20, 200, 1500))
            payloads = [f"{self.name}.{first + at}.{fill}" for at in range(n)]
            write = Write(payloads=payloads, tag=tag, key=f"{self.name}.{first}" if keyed else None)
        if keyed:
            self.retries.append(write)
        body: dict[str, Any] = {"records": [{"data": data, "tag": write.tag or "none"} for data in write.payloads]}
        if write.key is not None:
            body["idempotency_key"] = write.key
        sent = (write, now_ms())
        sent_again = write.status == "acked"  # otherwise two clients may send it at once, and either may come first
        self._open.append(sent)

        def done(status: int, answer: Any) -> None:
            self._open.remove(sent)
            if status in (200, 201):
                self._acknowledge(write, answer, sent_ms=sent[1], sent_again=sent_again)
            else:
                require(status in REFUSED, f"append to {self.name}: {status} {answer}")
                if write.status == "open" and write.key is None:
                    self._refuse(write)

        return Request("POST", f"/v0/topics/{self.name}", body, done)

    def _acknowledge(self, write: Write, answer: Any, *, sent_ms: int, sent_again: bool) -> None:
        first = answer["first_seq"]
        if write.status == "acked":
            again = sent_again and not answer["deduped"]
            require(not again, f"{self.name}: {write.key} was acknowledged as {write.first} and written again")
            require(first == write.first, f"{self.name}: {write.key} was acknowledged as {write.first}, now {first}")
            self._tally["deduped"] += 1
            return
        write.status, write.first = "acked", first
        self._tally["acknowledged"] += len(write.payloads)
        for seq, payload in enumerate(write.payloads, first):
            self._learn(seq, payload, write.tag, sent_ms)

    def _learn(self, seq: int, payload: str, tag: str | None, sent_ms: int) -> None:
        other = self.known.setdefault(seq, payload)
        require(other == payload, f"{self.name}: seq {seq} was given to {other[:40]} and to {payload[:40]}")
        where = self.seq_of.setdefault(payload, seq)
        require(where == seq, f"{self.name}: {payload[:40]} is at {where} and at {seq}")
        self.tags[seq], self.sent_ms[seq] = tag or "none", sent_ms

    def _refuse(self, write: Write) -> None:
        write.status = "refused"
        self._never.update(write.payloads)

    def delete(self, rng: Random) -> Request:
        """Delete a tag, the front, both, or some seqs. Only one client may write to and delete from such a topic."""
        top = max(self.known, default=0)
        if top and rng.random() < 0.2:
            seqs = sorted({rng.randint(max(1, top - 60), top) for _ in range(rng.choice((1, 5)))})
            return self._delete({"seqs": seqs}, SeqRemoval(seqs=frozenset(seqs)))
        before_seq = rng.randint(max(1, top - 60), top + 1) if rng.random() < 0.5 else None
        tag = rng.choice(TAGS) if before_seq is None or rng.random() < 0.3 else None
        body: dict[str, Any] = {}
        if before_seq is not None:
            body["before_seq"] = before_seq
        if tag is not None:
            body["match"] = ["tag", "Eq", tag]
        limit = top + sum(len(write.payloads) for write, _ in self._open) + 1
        return self._delete(body, Removal(before_seq=min(before_seq or limit, limit), tag=tag))

    def _delete(self, body: dict[str, Any], removal: Removal) -> Request:
        self._maybe.append(removal)
        self.history.removals.append(removal)
        certain = len(self._maybe) == 1 and not self._open

        def done(status: int, answer: Any) -> None:
            self._maybe.remove(removal)
            if status != 200:
                require(status in REFUSED, f"delete from {self.name}: {status} {answer}")
                return
            removal.status = "acked"
            covered = self._covered(removal)
            wrong = certain and answer["deleted"] != len(covered)
            require(not wrong, f"{self.name}: {body} deleted {answer['deleted']}, {len(covered)} match")
            self.gone |= covered
            self._tally["deletes"] += 1

        return Request("POST", f"/v0/topics/{self.name}/delete", body, done)

    def _covered(self, removal: Removal) -> set[int]:
        return {seq for seq, tag in self.tags.items() if seq not in self.gone and removal.covers(seq, tag)}

    def turn(self, rng: Random) -> Request:
        """Change the class of durability, to one that survives a kill as this one does."""
        config = {"durability": rng.choice(("fsync", "disk", "memory"))}

        def done(status: int, answer: Any) -> None:
            require(status in (200, *REFUSED), f"change {self.name}: {status} {answer}")
            self._tally["class_changes"] += status == 200

        return Request("PUT", f"/v0/topics/{self.name}", config, done)

    def forget(self, below: int) -> None:
        """Forget the records below a seq, so that a long run needs no memory for them."""
        for seq in [seq for seq in self.known if seq < below]:
            del self.seq_of[self.known.pop(seq)], self.tags[seq], self.sent_ms[seq]
            self.gone.discard(seq)
        if len(self.history.removals) > 1:
            del self.history.removals[1:]  # the check asks only whether there were any

    # --- check ---

    @property
    def unchecked(self) -> int:
        """The seq that the next check must read from: a delete without an answer may concern every record."""
        return 0 if self._maybe else self.checked

    def check(self, page: Page) -> None:
        """Compare what a restarted server answers with what was promised."""
        self._check_edges(page)
        lost = self._reported(page)
        for seq, row in page.rows.items():
            self._check_row(seq, row["data"])
            old = "ttl_ms" in self.config and page.asked_ms - row["$ts"] > self.config["ttl_ms"] + clock.doubt_ms
            require(not old, f"{self.name}: {seq} is expired and is there")
        vanished = [seq for seq in self.known if seq > page.low and seq not in page.rows]
        for seq in vanished:
            self._check_absent(seq, lost)
        for seq in range(max(page.low + 1, lost.stop), page.head + 1):
            if seq not in page.rows and seq not in self.known:
                require(self.history.removals, f"{self.name}: seq {seq} is neither there nor reported")
        self._resolve(page, vanished)
        self._tally["checked"] += len(page.rows)
        self.checked, self.earliest = page.head, page.earliest

    def _check_edges(self, page: Page) -> None:
        top = max(self.known, default=0)
        require(page.head >= top, f"{self.name}: the head is {page.head}, {top} was acknowledged")
        require(
            page.earliest >= self.earliest, f"{self.name}: the front went back from {self.earliest} to {page.earliest}"
        )
        if self._evicts == "cap":
            latest = max(1, page.head - self.config["cap_records"] + 1)
            require(page.earliest <= latest, f"{self.name}: more was evicted than the cap asks for")

    def _reported(self, page: Page) -> range:
        """The seqs whose loss the topic's settings allow and the server reported."""
        lost = range(0)
        for gap in page.gaps:
            allowed = (self._evicts, "mixed") if self._evicts == "restart" else (self._evicts,)
            require(gap["reason"] in allowed, f"{self.name}: {gap}")
            lost = range(page.low + 1, gap["gap_to"] + 1)
        return lost

    def _check_row(self, seq: int, payload: str) -> None:
        require(seq not in self.gone, f"{self.name}: {seq} was deleted and is back")
        require(payload not in self._never, f"{self.name}: {payload[:40]} was refused or absent once, and is there")
        require(self.seq_of.get(payload, seq) == seq, f"{self.name}: {payload[:40]} is there twice")
        require(self.known.get(seq, payload) == payload, f"{self.name}: {seq} has changed to {payload[:40]}")

    def _check_absent(self, seq: int, lost: range) -> None:
        if seq in self.gone or any(removal.covers(seq, self.tags[seq]) for removal in self._maybe):
            return
        require(seq in lost, f"{self.name}: seq {seq} was acknowledged and is lost")
        ttl_ms = self.config.get("ttl_ms")
        young = ttl_ms is not None and now_ms() - self.sent_ms[seq] <= ttl_ms - clock.doubt_ms
        require(not young, f"{self.name}: seq {seq} expired before its time")

    def _resolve(self, page: Page, vanished: Iterable[int]) -> None:
        """Decide requests without an answer: a write is stored whole or not at all, a delete took effect or did not."""
        seq_of = {row["data"]: seq for seq, row in page.rows.items()} if self._open else {}
        for write, sent_ms in self._open:
            found = [seq_of[payload] for payload in write.payloads if payload in seq_of]
            if found:
                whole = found == list(range(found[0], found[0] + len(write.payloads)))
                require(whole or self.history.removals or page.gaps, f"{self.name}: a batch was torn at {found}")
                if whole:
                    write.status, write.first = "acked", found[0]
                for seq in found:
                    self._learn(seq, page.rows[seq]["data"], write.tag, sent_ms)
            elif write.status == "open" and write.key is None:
                self._refuse(write)
        self._open.clear()
        for seq in page.rows:
            require(seq in self.known, f"{self.name}: no client wrote {page.rows[seq]['data'][:40]} at {seq}")
        for removal in self._maybe:
            removal.status = "refused"
        self._maybe.clear()
        if not self._evicts:
            self.gone.update(vanished)


class Copy:
    """A router's destination: its records are those of the source, in order, at seqs that never change."""

    def __init__(self, name: str, source: Log, tally: Tally, *, only: str | None = None) -> None:
        self.name, self.source, self.only = name, source, only
        self.checked = 0
        self.capped = False
        self._expected: list[str] = []
        self._at = 0
        self._tally = tally

    def check(self, page: Page) -> None:
        """The source is checked before, so that all its records are known."""
        for seq in range(self._at + 1, self.source.checked + 1):
            if self.only is None or self.source.tags[seq] == self.only:
                self._expected.append(self.source.known[seq])
        self._at = self.source.checked
        require(page.head >= self.checked, f"{self.name}: the head went back from {self.checked} to {page.head}")
        require(page.head <= len(self._expected), f"{self.name}: {page.head} copies of {len(self._expected)} records")
        require(self.capped or not page.gaps, f"{self.name}: {page.gaps}")
        lost = max((gap["gap_to"] for gap in page.gaps), default=page.low)
        for seq in range(lost + 1, page.head + 1):
            row = page.rows.get(seq)
            right = row is not None and row["data"] == self._expected[seq - 1]
            require(right, f"{self.name}: {seq} is {row}, not {self._expected[seq - 1][:40]}")
        self._tally["checked"] += len(page.rows)
        self.checked = page.head


class Sieve:
    """A destination too small for all copies: it has some records of the source, in order, and reports the others."""

    def __init__(self, name: str, source: Log, tally: Tally) -> None:
        self.name, self.source = name, source
        self.checked = 0
        self._seen: dict[int, str] = {}
        self._tally = tally

    def check(self, page: Page) -> None:
        """The source is checked before, so that all its records are known."""
        require(page.head >= self.checked, f"{self.name}: the head went back from {self.checked} to {page.head}")
        for gap in page.gaps:
            require(gap["reason"] in ("cap", "mixed", "source_trim"), f"{self.name}: {gap}")
        last = 0
        for seq, row in page.rows.items():
            at = self.source.seq_of.get(row["data"], 0)
            require(at > last, f"{self.name}: {seq} is record {at} of the source, after {last}")
            last = at
            known = self._seen.setdefault(seq, row["data"])
            require(known == row["data"], f"{self.name}: {seq} was {known[:40]} and is {row['data'][:40]}")
        lost = max((gap["gap_to"] for gap in page.gaps), default=page.low)
        missing = [seq for seq in range(lost + 1, page.head + 1) if seq not in page.rows]
        require(not missing, f"{self.name}: {missing[:3]} are neither there nor reported")
        self._tally["checked"] += len(page.rows)
        self.checked = page.head


class Churn:
    """One name whose topic is created and dropped again and again."""

    def __init__(self, name: str, tally: Tally) -> None:
        self.name = name
        self.log: Log | None = None
        self.doubt = False  # the last creation or drop has no answer
        self._epochs: set[int] = set()
        self._lives = 0
        self._tally = tally

    def next(self, rng: Random) -> list[Request]:
        """Create the topic and write to it, or write to it, or drop it."""
        if self.log is not None and not self.doubt and rng.random() < 0.7:
            return [self.log.write(rng, n=rng.choice((1, 5)))]
        doubt, self.doubt = self.doubt, True
        if self.log is not None:
            return [Request("DELETE", f"/v0/topics/{self.name}", None, self._dropped)]
        config = {"durability": rng.choice(("fsync", "disk", "memory"))}

        def created(status: int, answer: Any) -> None:
            require(status in (200, 201, *REFUSED), f"create {self.name}: {status} {answer}")
            require(status != 200 or doubt, f"{self.name}: the topic was dropped and is back")
            if status in (200, 201):
                self._tally["created"] += 1
                self._begin()
            self.doubt = doubt and status not in (200, 201)

        return [Request("PUT", f"/v0/topics/{self.name}", config, created)]

    def _dropped(self, status: int, answer: Any) -> None:
        require(status in (200, *REFUSED), f"drop {self.name}: {status} {answer}")
        if status == 200:
            self.log, self.doubt = None, False

    def _begin(self) -> None:
        self._lives += 1
        self.log = Log(self.name, self._tally)
        self.log._number = self._lives * 1_000_000  # payloads of one epoch never look like those of another

    async def check(self, connection: Connection) -> None:
        status, _ = await connection.ask("GET", f"/v0/topics/{self.name}")
        if status == 404:
            require(self.log is None or self.doubt, f"{self.name}: the topic was created and is lost")
            self.log = None
        else:
            require(status == 200, f"{self.name}: {status}")
            require(self.log is not None or self.doubt, f"{self.name}: the topic was dropped and is back")
            page = await read(connection, self.name, 0)
            if self.log is None:
                self._begin()
                assert self.log is not None
            self.log.check(page)
            epochs = self._epochs
            require(page.epoch in epochs or page.epoch > max(epochs, default=-1), f"{self.name}: epoch {page.epoch}")
            epochs.add(page.epoch)
        self.doubt = False


__all__ = ["REFUSED", "TAGS", "Churn", "Copy", "Log", "Page", "Sieve", "Tally", "Violation", "clock", "now_ms", "read"]
