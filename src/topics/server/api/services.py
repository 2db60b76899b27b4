"""The services of a running server that route handlers use."""

from __future__ import annotations

from msgspec import Struct

from topics.engine.engine import Engine
from topics.errors import Code, TopicsError
from topics.server.access.quotas import Quotas
from topics.server.limits.budget import MemoryBudget
from topics.server.loop.poll_cache import PollCache
from topics.server.loop.queue_samples import QueueSamples
from topics.server.loop.runtime import Runtime
from topics.server.loop.samples import Samples
from topics.server.loop.shared_answers import SharedAnswers
from topics.server.loop.sliced_work import Slices
from topics.server.loop.storage import Storage
from topics.server.loop.throttle import Throttle
from topics.server.loop.traffic import Traffic
from topics.server.push.dispatcher import Dispatcher
from topics.server.push.jobs.waiters import JobWaiters
from topics.server.push.sessions import Sessions
from topics.server.push.websocket.commands import SocketServices
from topics.server.startup import Startup
from topics.storage.log.stats import WalStats


class Services(Struct, frozen=True, kw_only=True, eq=False):
    """Built once, when the data is recovered."""

    runtime: Runtime
    engine: Engine  # of the runtime, without the second attribute lookup: for hot paths
    startup: Startup
    budget: MemoryBudget
    quotas: Quotas
    throttle: Throttle
    poll_cache: PollCache
    traffic: Traffic
    samples: Samples
    queue_samples: QueueSamples
    slices: Slices
    shared_answers: SharedAnswers
    dispatcher: Dispatcher
    sessions: Sessions
    job_waiters: JobWaiters
    sockets: SocketServices
    storage: Storage | None  # None without a data directory

    def check_ready(self) -> None:
        """Raise 503 while the server stops."""
        if self.runtime.draining:
            raise TopicsError(Code.SHUTTING_DOWN, "the server is stopping", retry_after_ms=1000)

    def read_only(self) -> str | None:
        """Return why nothing can be written; None if writes are possible."""
        return None if self.storage is None else self.storage.wal.read_only

    def checkpoint_failure(self) -> str | None:
        """Return why the last checkpoint failed; None if it succeeded."""
        return None if self.storage is None else self.storage.store.retries.reason

    def wal_stats(self) -> WalStats:
        """Return the counters of the log; zeros without a data directory."""
        return WalStats() if self.storage is None else self.storage.wal.stats
