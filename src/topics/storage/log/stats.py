"""Figures of the log, counted as it works."""

from bisect import bisect_left
from typing import ClassVar


class WalStats:
    """Counters since the process started; the histogram's buckets are not cumulative."""

    BOUNDS_US: ClassVar[tuple[int, ...]] = (
        50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000,
    )  # fmt: skip

    def __init__(self) -> None:
        self.frames_total = 0
        self.batches_total = 0
        self.fsyncs_total = 0
        self.bytes_written_total = 0
        self.rotations_total = 0
        self.submit_full_total = 0
        self.queue_depth = 0
        self.queue_depth_peak = 0
        self.fsync_sum_us = 0
        self.slow_us = 0  # the longest of the last few syncs
        self.fsync_buckets = [0] * (len(self.BOUNDS_US) + 1)

    def synced(self, took_us: int) -> None:
        self.fsyncs_total += 1
        self.slow_us = max(took_us, self.slow_us * 15 // 16)
        self.fsync_sum_us += took_us
        self.fsync_buckets[bisect_left(self.BOUNDS_US, took_us)] += 1
