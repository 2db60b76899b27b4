"""Record one run of a workload so that a crash can be tried at each of its file calls."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

from tests.simulated.clock import SimClock
from tests.simulated.disk import MUTATING, SimDisk
from tests.simulated.inode import Write

T = TypeVar("T")


class Copied(Protocol):
    """The knowledge of the clients. It changes while the run is recorded."""

    def copy(self: T) -> T: ...


Kept = TypeVar("Kept", bound=Copied)


class Moment(NamedTuple, Generic[Kept]):
    """The moment before a call or in the middle of a write: the disk, the clock, and the answers so far."""

    what: str
    disk: SimDisk
    ms: int
    ledger: Kept


class FilmedDisk(SimDisk, Generic[Kept]):
    """A disk that keeps a copy of itself from before each call that changes something."""

    ledger: Kept | None = None
    clock: SimClock

    def film(self, ledger: Kept, clock: SimClock) -> None:
        self.moments: list[Moment[Kept]] = []
        self.ledger, self.clock = ledger, clock

    def _call(self, op: str, path: str, work: Callable[[], T], fail: Callable[[bool], None] | None = None) -> T:
        if self.ledger is None or op not in MUTATING:
            return super()._call(op, path, work, fail)
        moment = Moment(
            f"before call {len(self.calls)}: {op} {path}", self.clone(), self.clock.now_ms(), self.ledger.copy()
        )
        self.moments.append(moment)
        result = super()._call(op, path, work, fail)
        if op in ("pwrite", "pwritev"):
            self._film_half(moment, path)
        return result

    def _film_half(self, moment: Moment[Kept], path: str) -> None:
        written = self._names.file(path)._pending[-1]
        if isinstance(written, Write) and len(written.data) > 1:
            half = moment.disk.clone()
            cut = Random(f"{self.seed} {moment.what}").randrange(1, len(written.data))
            half.open(path, write=True).pwrite(written.data[:cut], written.at)
            self.moments.append(moment._replace(what=moment.what.replace("before", "during"), disk=half))
