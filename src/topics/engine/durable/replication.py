"""The replica of a running engine: what waits for uploads, and what happens without the bucket."""

from __future__ import annotations

from collections.abc import Callable

from topics.clock import Clock
from topics.engine.durable.store import Store
from topics.engine.write.commit import Commits
from topics.engine.write.uploads import Replica
from topics.storage.log.background import Fenced, LogRefused, ReplicaRefused
from topics.storage.log.wal import LogState
from topics.storage.replica.objects import Announced, Position
from topics.storage.replica.sequence import State
from topics.storage.replica.uploader import Uploader

ALIVE_MS = 5_000  # how often an idle writer shows that it lives, at least
STALE_MS = 60_000  # how long a standby counts that does not announce itself again
SLACK_MS = 1_000  # from the time of a write to the moment at which it is in the log, at most


class Replication(Replica):
    """Connects an uploader with the log, the store and the commits of one engine."""

    def __init__(
        self, uploader: Uploader, store: Store, clock: Clock, *, timeout_ms: int, takeover_after_ms: int = 15_000
    ) -> None:
        self.uploader = uploader
        self.sequence = uploader.sequence
        self._store = store
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._takeover_after_ms = takeover_after_ms
        self._standbys: dict[str, tuple[Announced, int]] = {}  # by name, and when this one was seen first
        self.followers: list[Announced] = []
        self.successors = 0  # followers that would take over
        self._followed_since_ms = 0  # since when there is a successor
        self._commits: Commits | None = None
        self.on_fence: Callable[[str], None] = lambda reason: None
        self.on_state: Callable[[], None] = lambda: None  # called when an object is in the bucket, or the state changed
        self.sequence.as_of_ms = lambda: clock.now_ms() - store.wal.sync_ms - SLACK_MS
        self.sequence.is_quiet = lambda: not store.wal.stats.queue_depth
        store.replica = uploader
        store.wal.on_synced = uploader.synced
        uploader.on_change = self._changed
        uploader.want_checkpoint = self._checkpoint

    def attach(self, commits: Commits) -> None:
        """Let commits wait for uploads from now on."""
        self._commits = commits
        commits.uploads.replica = self

    # --- for the commits

    @property
    def covered(self) -> Position:
        return self.sequence.covered

    @property
    def refusal(self) -> LogRefused | None:
        if self._store.wal.state is LogState.FENCED:
            return Fenced(self._store.wal.read_only)
        if self.is_cut_off:
            return ReplicaRefused("the replica does not answer, so a standby may have taken over")
        if self.is_away:
            return ReplicaRefused(f"the replica does not answer: {self.sequence.last_failure or 'no answer yet'}")
        if self.sequence.state is not State.FOLLOWING:
            return ReplicaRefused(f"the replica is {self.sequence.state}: its first checkpoint is not complete")
        return None

    def hurry(self) -> None:
        assert self._commits is not None
        if self._store.wal.state is LogState.FENCED:  # while these were being synced
            self._commits.uploads.refuse(Fenced(self._store.wal.read_only))
        self.sequence.waiting = self._commits.uploads.writers
        self.uploader.pump()

    # --- standbys

    def note_standbys(self, announced: list[Announced]) -> None:
        """Note the announcements in the bucket. One that does not change any more is not that of a follower."""
        now_ms, known = self._now_ms(), self._standbys
        self._standbys = {
            one.name: known[one.name] if one.name in known and known[one.name][0] == one else (one, now_ms)
            for one in announced
        }
        self.followers = [one for one, seen_ms in self._standbys.values() if now_ms - seen_ms < STALE_MS]
        before, self.successors = self.successors, sum(one.takes_over for one in self.followers)
        if self.successors and not before:
            self._followed_since_ms = now_ms
        self.sequence.followed = self.successors > 0
        self.sequence.alive_ms = min(ALIVE_MS, self._takeover_after_ms // 3) if self.followers else 0
        self.uploader.pump()

    @property
    def is_cut_off(self) -> bool:
        """Whether a standby may have taken over: the bucket has confirmed nothing for as long as that waits."""
        since_ms = max(self.sequence.confirmed_ms, self._followed_since_ms)
        return self.successors > 0 and self._now_ms() - since_ms > self._takeover_after_ms

    # --- the bucket

    @property
    def is_away(self) -> bool:
        """Whether the bucket has not confirmed an object in time."""
        return self.sequence.stalled_ms(self._now_ms()) > self._timeout_ms

    @property
    def lag_ms(self) -> int:
        """For how long the oldest bytes of the log that are not uploaded have been synced."""
        return self.sequence.lag_ms(self._now_ms())

    def check(self) -> bool:
        """Report writes that have waited for too long, and refuse all if cut off. Return whether others wait."""
        uploads = self._commits.uploads if self._commits is not None else None
        if uploads is None:
            return False
        uploads.are_staged |= self.is_cut_off
        uploads.report("the bucket does not answer", waited_ns=self._timeout_ms * 1_000_000)
        return bool(uploads)

    def _changed(self) -> None:
        if self._commits is not None:
            uploads = self._commits.uploads
            if self.sequence.state is State.FENCED and self._store.wal.state is not LogState.FENCED:
                self._fence()
            elif self.sequence.state is State.LOST:
                uploads.report("the replica was away for too long")
            uploads.ended()
            self.sequence.waiting = uploads.writers
        self.on_state()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _checkpoint(self) -> None:
        self._store.checkpoint()  # if one is in progress, the next one takes its place

    def _fence(self) -> None:
        by = self.sequence.fenced_by
        who = "an unknown object is in its sequence" if by is None else f"{by.host or by.instance} has taken it over"
        reason = f"this server no longer writes its replica: {who} (object {self.sequence.last_number + 1})"
        self._store.wal.fence(reason)
        if self._commits is not None:
            self._commits.uploads.refuse(Fenced(reason))
        self.on_fence(reason)
