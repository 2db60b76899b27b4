"""The table of a run: a line per minute, then sums, faults and alerts."""

from __future__ import annotations

import os
from contextlib import suppress

from tests.faults.soak.alerts import Fault, Prometheus, judge
from tests.faults.soak.target import Target

HEAD = (
    f"{'minute':>6} {'requests':>9} {'p50 ms':>8} {'p99 ms':>8} {'RSS MiB':>8} {'descriptors':>11} {'CPU µs/req':>10} "
    f"{'disk MiB':>8}  faults and errors"
)


def table(target: Target, faults: list[Fault], prometheus: Prometheus) -> str:
    """Return the whole table."""
    lines = [HEAD, *(_line(target, faults, minute) for minute in sorted({one.minute for one in target.samples}))]
    requests = target.tally["requests"]
    right, wrong, missing = judge(faults, prometheus.fired)
    lines += [
        f"requests {requests}, errors: {_counts(target.errors)}",
        f"processor time {target.cpu_s / max(requests, 1) * 1e6:.0f} µs per request, "
        f"directory {directory_mib(target):.1f} MiB at the end",
        "faults: " + (", ".join(f"{one.name} at {one.began_s:.0f} to {one.ended_s:.0f} s" for one in faults) or "none"),
    ]
    if prometheus.runs:
        lines += [
            f"alerts that fired and should have: {', '.join(right) or 'none'}",
            f"alerts that fired and should not have: {', '.join(wrong) or 'none'}",
            f"alerts that did not fire and should have: {', '.join(missing) or 'none'}",
        ]
    return "\n".join(lines)


def _line(target: Target, faults: list[Fault], minute: int) -> str:
    times = sorted(target.times_ms.get(minute, ())) or [0.0]
    samples = [one for one in target.samples if one.minute == minute]
    rss = max(one.rss_bytes for one in samples) / 2**20
    descriptors = max(one.descriptors for one in samples)
    requests = len(target.times_ms.get(minute, ()))
    cpu_us = target.minute_cpu_s[minute] / max(requests, 1) * 1e6
    notes = [one.name for one in faults if one.began_s < (minute + 1) * 60 and one.ended_s >= minute * 60]
    errors = target.minute_errors.get(minute)
    notes += [_counts(errors)] if errors else []
    return (
        f"{minute:>6} {requests:>9} {times[len(times) // 2]:>8.1f} {times[len(times) * 99 // 100]:>8.1f} {rss:>8.0f} "
        f"{descriptors:>11} {cpu_us:>10.0f} {target.minute_mib.get(minute, 0):>8.1f}  {'; '.join(notes)}"
    ).rstrip()


def _counts(errors: dict[str, int]) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(errors.items())) or "none"


def directory_mib(target: Target) -> float:
    """Return the size of the data directory. Files may go while it is measured."""
    total = 0
    for folder, _, names in os.walk(target.directory / "data"):  # it skips folders that have gone
        for name in names:
            with suppress(FileNotFoundError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total / 2**20
