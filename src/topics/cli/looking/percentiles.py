"""Percentiles of measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

SHOWN = (("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99))


def percentiles(times_ms: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the maximum of a sample; empty for an empty one."""
    if not times_ms:
        return {}
    ordered = sorted(times_ms)
    found = {name: round(ordered[ceil(len(ordered) * share) - 1], 3) for name, share in SHOWN}
    return found | {"max_ms": round(ordered[-1], 3)}


def of_buckets(before: Mapping[str, float], now: Mapping[str, float], share: float) -> float | None:
    """Return the upper bound of the bucket that a share of the new values lies in; None if there are none.

    The buckets are cumulative counts by upper bound, with `+Inf` last.
    """
    counts = [(float("inf") if name == "+Inf" else float(name), now[name] - before.get(name, 0)) for name in now]
    counts.sort()
    total = counts[-1][1] if counts else 0
    if total <= 0:
        return None
    return next(bound for bound, count in counts if count >= total * share)
