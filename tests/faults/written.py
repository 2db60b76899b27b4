"""Data directories as a killed server leaves them, written in this process at a time of the test's choice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.simulated.clock import SimClock
from tests.simulated.harness import request
from topics.engine.durable.store import Store
from topics.engine.engine import Engine
from topics.engine.state.topics import State
from topics.engine.write.commit import Ticket
from topics.model.topic import ConfigPatch
from topics.storage.datadir import DataDir
from topics.storage.fs import Fs
from topics.storage.log.wal import Wal
from topics.storage.worker import InlineWorker


class Writer:
    """An engine on real files with a simulated clock."""

    def __init__(self, path: Path, *, now_ms: int) -> None:
        self.clock = SimClock(now_ms)
        datadir = DataDir(Fs(), str(path))
        datadir.open()
        state = State()
        wal = Wal(datadir, file_bytes=64 << 20, worker=InlineWorker(), clock=self.clock)
        self.store = Store(datadir, state, wal, worker=InlineWorker(), clock=self.clock)
        self.store.recover(lambda share: None)
        self.engine = Engine(clock=self.clock, log=wal, state=state)
        self.store.commits = self.engine.commits

    def done(self, ticket: Ticket) -> Any:
        self.engine.flush()
        return ticket.value()

    def put(self, name: str, **config: Any) -> None:
        self.done(self.engine.put_topic(name, ConfigPatch(**config)))

    def append(self, name: str, *data: str) -> None:
        self.done(self.engine.append(name, request(*data)))

    def pad(self, name: str, entries: int) -> None:
        """Make the log longer by so many entries of another topic: a start has to replay them."""
        for number in range(entries):
            self.append(name, str(number))


@contextmanager
def killed(path: Path, *, now_ms: int) -> Iterator[Writer]:
    """Write to the directory, then leave it without a checkpoint, as SIGKILL does."""
    writer = Writer(path, now_ms=now_ms)
    yield writer
    writer.store.close()
