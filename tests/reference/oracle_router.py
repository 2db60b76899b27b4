"""Routers in the reference model: after every verb, forward all records that can be forwarded, one at a time.

A copy is a new fact in the destination. A record that the source lost before the router read it becomes a lost fact
there. A router that reads from a destination processes each copy before the next one arrives, so nothing is lost along
a chain unless a full topic at its end blocks it. The time at which a copy takes effect is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tests.model.naive_filter import loads, matches
from tests.reference.model_topic import Fact, ModelTopic
from tests.reference.oracle import Landed, Oracle
from topics.clock import Clock
from topics.model.filters import parse_filter
from topics.model.records import TagMatch, WriteRequest
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch

SOURCE_TRIM = "source_trim"
T = TypeVar("T")


@dataclass
class Rule:
    """One router."""

    name: str
    source: ModelTopic
    dest: ModelTopic
    match: TagMatch | None
    preserve_node: bool
    preserve_tag: bool
    cursor: int
    forwarded: int = 0

    @property
    def searches(self) -> bool:
        """Whether the filter is on other fields than the tag."""
        return self.match is not None and self.match.op == "Where"

    def covers(self, fact: Fact) -> bool:
        if self.match is None or not self.searches:
            return self.match is None or self.match.covers(fact.tag)
        return matches(loads(self.match.text.encode()), fact.data, fact.meta, fact.tag)


class RouterOracle(Oracle):
    """All topics and all routers. For graphs without cycles, and topics without a TTL."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.rules: dict[str, Rule] = {}

    def put_router(self, name: str, request: RouterRequest) -> bool:
        """Create or change a router. Return whether it was created. The engine has accepted the request."""
        for topic in (request.source, request.dest):
            if topic not in self.topics:
                self.put(topic, ConfigPatch())
        source, dest = self.topics[request.source], self.topics[request.dest]
        match = parse_filter(request.filter)
        old = self.rules.get(name)
        if old is not None and (old.source, old.dest) == (source, dest):
            old.match, old.preserve_node, old.preserve_tag = match, request.preserve_node, request.preserve_tag
            self.forward()
            return False
        start = (
            source.head if request.from_seq is None else min(max(request.from_seq, source.earliest - 1), source.head)
        )
        self.rules.pop(name, None)
        self.rules[name] = Rule(name, source, dest, match, request.preserve_node, request.preserve_tag, start)
        self.forward()
        return old is None

    def drop_router(self, name: str) -> bool:
        return self.rules.pop(name, None) is not None

    def drop(self, name: str, *, if_empty: bool = False) -> bool:
        topic = self.topics.get(name)
        done = super().drop(name, if_empty=if_empty)
        if done:
            self.rules = {key: rule for key, rule in self.rules.items() if topic not in (rule.source, rule.dest)}
        return done

    def append(self, name: str, request: WriteRequest) -> Landed:
        landed = self._noticing_losses(name, lambda: super(RouterOracle, self).append(name, request))
        self.forward()
        return landed

    def put(self, name: str, patch: ConfigPatch) -> bool:
        made = self._noticing_losses(name, lambda: super(RouterOracle, self).put(name, patch))
        self.forward()
        return made

    def delete(self, name: str, *, before_seq: int | None, match: TagMatch | None) -> int:
        deleted = super().delete(name, before_seq=before_seq, match=match)
        self.forward()
        return deleted

    # --- forwarding

    def forward(self) -> None:
        """Forward until every router is at the head of its source or has a full destination."""
        while any(self._step(rule) for rule in list(self.rules.values())):
            pass

    def _step(self, rule: Rule) -> bool:
        """Forward one record of the source. Return whether the cursor moved."""
        first = min((other for other in self.rules.values() if other.dest is rule.dest), key=lambda other: other.cursor)
        if rule.cursor >= rule.source.head or first.cursor < rule.cursor:
            return False
        fact = rule.source.facts[rule.cursor]
        if fact.lost:
            self._add(rule.dest, Fact(0, fact.ts, b"null", None, None, None, SOURCE_TRIM))
        elif fact.live and rule.covers(fact) and not self._copy(rule, fact):
            return False
        rule.cursor += 1
        for other in list(self.rules.values()):
            if other.source is rule.dest:
                while self._step(other):
                    pass
        return True

    def _copy(self, rule: Rule, fact: Fact) -> bool:
        dest = rule.dest
        node, tag = fact.node if rule.preserve_node else None, fact.tag if rule.preserve_tag else None
        copy = Fact(dest.head + 1, fact.ts, fact.data, node, tag, fact.meta)
        config = dest.config
        too_large = bool(config.cap_bytes) and copy.size_bytes > config.cap_bytes
        if config.discard == "reject" and (
            (config.cap_records and dest.count >= config.cap_records)
            or (config.cap_bytes and dest.bytes + copy.size_bytes > config.cap_bytes)
        ):
            return False
        if too_large:
            copy.fate = "cap"
        self._add(dest, copy)
        rule.forwarded += not too_large
        return True

    def _add(self, dest: ModelTopic, fact: Fact) -> None:
        fact.seq = dest.head + 1
        dest.facts.append(fact)
        self._noticing_losses(dest.name, dest.enforce_caps)

    def _noticing_losses(self, name: str, change: Callable[[], T]) -> T:
        """Run `change`. Records lost before a router forwarded them become lost in the destination, one for one."""
        source = self.topics.get(name)
        before = set() if source is None else {fact.seq for fact in source.facts if fact.lost}
        result = change()
        source = self.topics[name]
        lost = [fact.seq for fact in source.facts if fact.lost and fact.seq not in before]
        for rule in [rule for rule in self.rules.values() if rule.source is source]:
            if not lost or lost[-1] <= rule.cursor:
                continue
            for fact in source.facts[rule.cursor : lost[-1]]:
                # For a record lost before the router read it, it is unknown whether it matches the filter.
                # A router does not search in records that it gives up.
                matches = fact.seq in before or rule.searches or rule.covers(fact)
                if fact.lost and matches:
                    self._add(rule.dest, Fact(0, fact.ts, b"null", None, None, None, SOURCE_TRIM))
            rule.cursor = lost[-1]
        return result
