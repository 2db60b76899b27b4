"""The figures that are sampled for the console, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.server.limits.os_limits import resident_bytes
from topics.server.loop.samples import Column
from topics.storage.log.stats import WalStats

if TYPE_CHECKING:
    from topics.engine.engine import Engine
    from topics.server.access.quotas import Quotas
    from topics.server.limits.budget import MemoryBudget
    from topics.server.loop.storage import Storage
    from topics.server.loop.throttle import Throttle
    from topics.server.loop.traffic import Traffic
    from topics.server.push.dispatcher import Dispatcher
    from topics.server.startup import Startup

REASONS = ("cap", "ttl", "corrupt")  # of losses, with a column each; the others share one


def columns(
    *,
    engine: Engine,
    traffic: Traffic,
    dispatcher: Dispatcher,
    quotas: Quotas,
    budget: MemoryBudget,
    throttle: Throttle,
    startup: Startup,
    storage: Storage | None,
) -> list[Column]:
    """Return the columns. Reading one takes no longer with more topics or records."""
    totals, queues = engine.state.totals, engine.queues
    wal = WalStats() if storage is None else storage.wal.stats
    return [
        Column("appended", lambda: totals.records + totals.removed, counter=True),
        Column("reads", lambda: traffic.reads, counter=True),
        Column("read", lambda: traffic.records_read, counter=True),
        Column("delivered", lambda: dispatcher.delivered_total, counter=True),
        Column("claimed", lambda: queues.claimed_total, counter=True),
        Column("acked", lambda: queues.acked_total, counter=True),
        Column("requests", startup.requests_total, counter=True),
        *(Column(f"lost_{reason}", _lost(totals.lost, reason), counter=True) for reason in REASONS),
        Column("lost_other", lambda: _other_losses(totals.lost), counter=True),
        Column("wal_bytes", lambda: wal.bytes_written_total, counter=True),
        Column("syncs", lambda: wal.fsyncs_total, counter=True),
        Column("sync_us", lambda: wal.fsync_sum_us, counter=True),
        Column("sync_p99_us", _SyncP99(wal)),
        Column("records", lambda: totals.records),
        Column("bytes", lambda: totals.bytes),
        Column("topics", lambda: len(engine.topics)),
        Column("connections", lambda: 0 if startup.http is None else startup.http.open_connections),
        Column("streams", lambda: quotas.streams),
        Column("resident_bytes", resident_bytes),
        Column("charged_bytes", lambda: budget.charged_bytes),
        Column("lag_ms", lambda: throttle.pressure.lag_ms),
        Column("pressure", lambda: throttle.pressure.step),
    ]


def _lost(lost: dict[str, int], reason: str) -> Callable[[], float]:
    return lambda: lost.get(reason, 0)


def _other_losses(lost: dict[str, int]) -> int:
    return sum(count for reason, count in lost.items() if reason not in REASONS)


class _SyncP99:
    """The 99th percentile of the syncs since the last call: the bound of its bucket; 0 if there were none."""

    def __init__(self, wal: WalStats) -> None:
        self._wal = wal
        self._before = list(wal.fsync_buckets)

    def __call__(self) -> float:
        now = list(self._wal.fsync_buckets)
        grown = [count - before for count, before in zip(now, self._before, strict=True)]
        self._before = now
        seen, wanted = 0, 0.99 * sum(grown)
        if not wanted:
            return 0
        bounds = (*WalStats.BOUNDS_US, WalStats.BOUNDS_US[-1])
        for bound, count in zip(bounds, grown, strict=True):
            seen += count
            if seen >= wanted:
                return bound
        return bounds[-1]
