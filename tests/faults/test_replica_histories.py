"""Random histories of `replicated` topics: every crash costs the whole machine, and the next start is elsewhere.

The same model as in `test_histories.py`: the state on the other machine is that after the first n verbs of the
interrupted turn, where n is at least the number of answered verbs. A history is cut at file calls and at requests to
the bucket.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.faults.syncs import Syncs
from tests.faults.test_histories import Pair, Turn, examples, seeds, turns_of, verbs
from tests.sampling import amount
from tests.simulated.bucket import SimBucket
from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from tests.simulated.replica import ReplicaServer


class ReplicaPair(Pair):
    """A server with a replica, and the model. Every start is on a new machine."""

    def __init__(self, seed: int) -> None:
        self.bucket = SimBucket()
        super().__init__("replicated", seed)

    def start(self, disk: SimDisk) -> SimServer:
        self.syncs = Syncs()
        self.bucket.heal()
        return ReplicaServer.begin(self.bucket, clock=self.clock, sync_worker=self.syncs)

    def play(self, turn: Turn) -> None:
        if turn.end in ("keep", "lose", "tear") and turn.crash_call is not None and turn.crash_call % 2:
            self.bucket.crash_at(len(self.bucket.requests) + turn.crash_call // 2, after=turn.look == "list")
            turn.crash_call = None
        super().play(turn)


turns = turns_of(verbs, st.none() | st.integers(0, 30))


@examples(amount(60, 2_000))
@given(st.lists(turns, max_size=10), seeds)
def test_replicated_history_on_changing_machines_matches_the_model(history: list[Turn], seed: int) -> None:
    pair = ReplicaPair(seed)
    for turn in history:
        pair.play(turn)
