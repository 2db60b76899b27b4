"""Consumers of one topic on a simulated disk and clock."""

from __future__ import annotations

from typing import Any

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.consumers.lag import lag_of, lost_of
from topics.engine.consumers.verbs import StoredConsumer
from topics.engine.state.consumers import Consumer
from topics.engine.steps import run_all
from topics.model.consumer import ConsumerRequest
from topics.storage.segments.cold import waiting

TOPIC = "orders"


class Consumers:
    """A server with one topic, and the verbs of its consumers. Every verb ends its turn."""

    def __init__(self, server: SimServer | None = None, **config: Any) -> None:
        if server is None:
            server = SimServer.start(SimDisk(seed=7))
            server.put(TOPIC, **config)
        self.server = server
        self.clock = server.clock
        self.engine = server.engine

    def write(self, n: int, *, size: int = 1) -> None:
        for at in range(n):
            self.server.append(TOPIC, '"' + str(at % 10) * size + '"')

    def put(self, name: str, **fields: Any) -> StoredConsumer:
        found: StoredConsumer = self.server.done(self.engine.consumers.put(TOPIC, name, ConsumerRequest(**fields)))
        return found

    def open(self, name: str, *, commit: bool | int = False) -> int:
        found: StoredConsumer = self.server.done(self.engine.consumers.open(TOPIC, name, commit=commit))
        return found.seq

    def drop(self, name: str) -> bool:
        found: bool = self.server.done(self.engine.consumers.drop(TOPIC, name))
        return found

    def get(self, name: str) -> Consumer:
        return self.engine.consumers.get(TOPIC, name)[1]

    def seqs(self) -> dict[str, int]:
        """Return where each consumer of the topic stands."""
        return {one.name: one.seq for _, one in self.engine.consumers.of_topic(self.engine.topic(TOPIC))}

    def lag(self, name: str) -> tuple[int, int]:
        """Return the lag in records and in milliseconds."""
        topic, consumer = self.engine.consumers.get(TOPIC, name)
        found = waiting(lambda: lag_of(topic, consumer, self.clock.now_ms()))
        return found.records, found.age_ms

    def lost(self, name: str) -> list[tuple[int, int, str]]:
        found = lost_of(*self.engine.consumers.get(TOPIC, name))
        return [] if found is None else [(gap.gap_from, gap.gap_to, gap.reason) for gap in found.gaps]

    def live(self) -> list[int]:
        """Return the seqs of all live records."""
        return list(self.server.by_seq(TOPIC))

    def delete(self, before_seq: int) -> None:
        self.server.done(run_all(self.engine.delete_records(TOPIC, before_seq=before_seq, match=None)))

    def restart(self, how: str) -> Consumers:
        """Stop, or crash in the given mode, and return the next start."""
        return Consumers(self.server.stop() if how == "stop" else self.server.crash(how))  # type: ignore[arg-type]
