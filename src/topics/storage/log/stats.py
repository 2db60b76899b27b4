"""Figures of the log, counted as it works."""

from bisect import bisect_left
from typing import ClassVar

from msgspec import Struct, field


class WalStats(Struct):
    """Counters since the process started; the histogram's buckets are not cumulative."""

    BOUNDS_US: ClassVar[tuple[int, ...]] = (
        50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000,
    )  # fmt: skip

    frames_total: int = 0
    batches_total: int = 0
    fsyncs_total: int = 0
    bytes_written_total: int = 0
    rotations_total: int = 0
    submit_full_total: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    fsync_sum_us: int = 0
    slow_us: int = 0  # the longest of the last few syncs
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * 14)

    def synced(self, took_us: int) -> None:
        self.fsyncs_total += 1
        self.slow_us = max(took_us, self.slow_us * 15 // 16)
        self.fsync_sum_us += took_us
        self.fsync_buckets[bisect_left(self.BOUNDS_US, took_us)] += 1
