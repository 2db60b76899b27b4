"""What a reader has seen stays true: no seq is shown twice with different data.

Servers with topics of all classes and routers between them lose their power, their machine, or the bucket for so long
that they give up a part of their log. A record may get lost, and is reported then, but its seq has no other record
afterwards. With a replica, every acknowledged write of a `replicated` topic is there, too.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from tests.sampling import SEED, amount
from tests.simulated.bucket import SimBucket
from tests.simulated.clock import SimClock
from tests.simulated.harness import SimServer
from tests.simulated.replica import ReplicaServer
from topics.errors import TopicsError
from topics.model.router import RouterRequest
from topics.storage.segments.cold import waiting

CLASSES = ("memory", "disk", "fsync")


class History:
    """One random history: verbs, crashes and starts, and all that readers have seen on the way."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.seen: dict[tuple[str, int, int], str] = {}
        self.sure: dict[tuple[str, int, int], str] = {}  # acknowledged writes to `replicated` topics
        self.number = 0
        self.log: list[str] = []
        self.server = self.begin()
        self.classes = CLASSES

    def begin(self) -> SimServer:
        return SimServer.start()

    def prepare(self) -> None:
        classes = [self.random.choice(self.classes) for _ in range(3)]
        for name, durability in zip(("source", "middle", "dest"), classes, strict=True):
            self.server.append(name, '"first"', durability=durability)
        for source, dest in (("source", "middle"), ("middle", "dest"), ("source", "dest")):
            if self.random.random() < 0.7:
                with suppress(TopicsError):
                    self.server.done(
                        self.server.engine.routers.put(f"{source}-{dest}", RouterRequest(source=source, dest=dest))
                    )
        self.sync()  # a topic that is lost may come back with its epoch: the simulated clock is slow
        self.log.append(str(classes))

    def sync(self) -> None:
        self.server.wal.sync_now()

    def play(self, steps: int) -> None:
        self.prepare()
        for _ in range(steps):
            self.step()
            self.look()

    def write(self) -> None:
        name = self.random.choice(("source", "middle", "dest"))
        self.number += 1
        self.log.append(f"write {name} {self.number}")
        with suppress(TopicsError):
            data = [str(self.number + part / 1000) for part in range(self.random.choice((1, 1, 3, 700)))]
            first = self.server.append(name, *data).first
            topic = self.server.engine.topic(name)
            if topic.config.durability == "replicated":
                self.sure |= {(name, topic.epoch, first + at): text for at, text in enumerate(data)}

    def step(self) -> None:
        match self.random.randrange(8):
            case 0 | 1 | 2 | 3:
                self.write()
            case 4:
                self.log.append("drain")
                for edge in self.server.engine.routers.table.edges.values():
                    self.server.engine.routers.due.add(edge)
                for _ in range(4):
                    waiting(lambda: self.server.engine.routers.forwarder.run(0))
            case 5:
                self.log.append("tick")
                self.server.tick()
            case 6:
                self.log.append("checkpoint")
                self.server.checkpoint()
            case _:
                self.crash()

    def crash(self) -> None:
        mode = self.random.choice(("lose", "lose", "tear", "reorder", "keep"))
        self.log.append(f"crash {mode}")
        self.server = self.server.crash(mode)  # type: ignore[arg-type]

    def look(self) -> None:
        """Read everything, and compare it with what was seen before."""
        for name in ("source", "middle", "dest"):
            if (topic := self.server.engine.topics.get(name)) is None:
                continue
            shown = {(name, topic.epoch, seq): data for seq, data in self.server.by_seq(name).items()}
            changed = {key: (self.seen[key], data) for key, data in shown.items() if self.seen.get(key, data) != data}
            assert not changed, (dict(list(changed.items())[:3]), self.log)
            self.seen |= shown
            lost = {key for key in self.sure if key[:2] == (name, topic.epoch)} - shown.keys()
            assert not lost, (sorted(lost)[:3], self.log)


class ReplicaHistory(History):
    """The same with a replica: also lost machines, and a bucket that does not answer."""

    def __init__(self, seed: int) -> None:
        self.bucket = SimBucket()
        super().__init__(seed)
        self.classes = (*CLASSES, "replicated", "replicated")

    def begin(self) -> SimServer:
        return ReplicaServer.begin(self.bucket, max_lag_bytes=self.random.choice((20_000, 1 << 40)))

    def sync(self) -> None:
        assert isinstance(self.server, ReplicaServer)
        self.server.pass_ms(2_000)

    def step(self) -> None:
        assert isinstance(self.server, ReplicaServer)
        match self.random.randrange(12):
            case 0 | 1:
                self.log.append("pass")
                self.server.pass_ms(self.random.choice((50, 1_100, 12_000)))
            case 2:
                self.log.append("away")
                self.bucket.fail(at=len(self.bucket.requests) + self.random.choice((0, 1)))
            case 3:
                self.log.append("back")
                self.bucket.heal()
            case _:
                super().step()

    def crash(self) -> None:
        assert isinstance(self.server, ReplicaServer)
        self.bucket.heal()
        way = self.random.choice(("elsewhere", "elsewhere", "stop", "kill"))
        self.log.append(way)
        if way == "stop":
            with suppress(TopicsError, OSError):
                self.server.close()
            self.server = ReplicaServer.begin(self.bucket, self.server.disk, clock=SimClock(self.server.clock.now_ms()))
        else:
            self.server = self.server.elsewhere() if way == "elsewhere" else self.server.restart()


@pytest.mark.parametrize("kind", [History, ReplicaHistory])
def test_no_seq_is_shown_twice_with_different_data(kind: type[History]):
    for seed in range(amount(25, 2_000)):
        History.play(kind(SEED * 1_000_000 + seed), 40)
