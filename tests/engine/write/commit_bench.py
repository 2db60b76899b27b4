"""An engine on a log that a test makes fail, and the frames of that log."""

import pytest

from tests.engine.harness import FakeLog, open_engine
from tests.simulated.clock import SimClock
from topics.engine.engine import Engine
from topics.errors import Code, TopicsError
from topics.model.topic import ConfigPatch
from topics.storage.log import frame

FSYNC, DISK, EPHEMERAL = (ConfigPatch(durability=durability) for durability in ("fsync", "disk", "ephemeral"))


class Bench:
    """An engine on a log that the test makes fail, and whose syncs end when the test says so."""

    def __init__(self, **topics: ConfigPatch) -> None:
        self.log = FakeLog()
        self.clock = SimClock()
        self.engine: Engine = open_engine(self.clock, log=self.log)
        for name, patch in topics.items():
            self.engine.put_topic(name, patch)
        self.turn()
        self.log.frames.clear()

    def turn(self) -> None:
        self.engine.flush()
        self.log.finish()

    def kinds(self) -> list[int]:
        return [head.kind for blob in self.log.frames for head in heads(blob)]


def heads(blob: bytes) -> list[frame.Head]:
    found, at = [], 0
    while at < len(blob):
        part, at = frame.decode(memoryview(blob), at)
        found.append(part.head)
    return found


def is_refused(ticket) -> bool:
    with pytest.raises(TopicsError) as caught:
        ticket.value()
    return caught.value.code is Code.READ_ONLY and caught.value.retry_after_ms is not None
