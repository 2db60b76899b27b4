"""A topic that changes between `ephemeral` and the classes that keep records."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.faults.kills.logs import REFUSED, Log, Page, Tally
from tests.faults.kills.server import Request, require

CLASSES = ("ephemeral", "fsync", "disk", "memory")


class Rising(Log):
    """What a kill may take: everything while the class is `ephemeral`, nothing once it is another.

    One client alone writes to it and changes it, so that it is known which class a kill meets.
    """

    def __init__(self, name: str, tally: Tally) -> None:
        super().__init__(name, tally, durability="fsync")
        self._evicts = "restart"
        self._volatile = False  # ephemeral, or a change of class without an answer
        self._promised: set[int] = set()  # the seqs that the last kill had to leave alone
        self._lost: set[int] = set()
        self._unsure_upto = 0  # a kill since the last check may have taken the records up to here

    def turn(self, rng: Random) -> Request:
        target = rng.choice(CLASSES)
        before, self._volatile = self._volatile, True

        def done(status: int, answer: Any) -> None:
            require(status in (200, *REFUSED), f"change {self.name}: {status} {answer}")
            self._volatile = before if status != 200 else target == "ephemeral"
            self._tally["class_changes"] += status == 200

        return Request("PUT", f"/v0/topics/{self.name}", {"durability": target}, done)

    def killed(self) -> None:
        """Note what the next start has to bring back."""
        if self._volatile:
            self._unsure_upto = max(self.known, default=0)
        self._promised = {seq for seq in self.known if seq > self._unsure_upto} - self._lost

    @property
    def unchecked(self) -> int:
        return 0 if self._unsure_upto else self.checked

    def check_class(self, page: Page, durability: str) -> None:
        """Check the page as `check` does, for a topic that came back in this class."""
        self.check(page)
        self._lost.update(seq for seq in self.known if seq > page.low and seq not in page.rows)
        self._volatile = durability == "ephemeral"
        self._unsure_upto = 0

    def _check_absent(self, seq: int, lost: range) -> None:
        require(seq in lost, f"{self.name}: seq {seq} is neither there nor reported")
        kept = seq in self._promised
        require(not kept, f"{self.name}: seq {seq} was lost though the topic had left `ephemeral`")
