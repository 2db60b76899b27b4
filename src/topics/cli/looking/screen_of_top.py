"""The screen of `topics top`: totals above, topics below. Builds what `rich` draws. No I/O."""

from __future__ import annotations

from typing import Any

from topics.cli.looking.sample import Overview, TopicRow
from topics.cli.output.screen import Cell, Styled, table
from topics.cli.output.units import count, duration, rate, size

SORTS = ("rate", "topic", "records", "bytes", "lag", "ready", "lost")
HEADER_LINES = 7


def sort_rows(found: list[TopicRow], order: str, needle: str) -> list[TopicRow]:
    """Return the topics whose names contain the filter, in an order of `SORTS`."""
    kept = [row for row in found if needle in row.topic]
    if order == "topic":
        return sorted(kept, key=lambda row: row.topic)
    return sorted(kept, key=lambda row: (-(getattr(row, order) or 0), row.topic))


def draw(
    total: Overview,
    found: list[TopicRow],
    *,
    url: str,
    order: str,
    needle: str,
    typing: bool,
    height: int,
    problem: str,
) -> Any:
    """Return the screen for a terminal of `height` lines."""
    from rich.console import Group
    from rich.text import Text

    room = max(height - HEADER_LINES - 2, 3)
    lines = [
        Text.assemble(("topics top  ", "bold"), (url, "cyan"), f"  up {duration(total.uptime_ms)}"),
        Text.assemble(
            ("writes ", "dim"), rate(total.rate), ("   requests ", "dim"), rate(total.requests),
            ("   records ", "dim"), f"{count(total.records)} ({size(total.bytes)})",
            ("   topics ", "dim"), count(total.topics),
        ),
        Text.assemble(
            ("connections ", "dim"), count(total.connections), ("   streams ", "dim"), count(total.streams),
            ("   client memory ", "dim"), size(total.memory_bytes),
            f" of {size(total.budget_bytes)}" if total.budget_bytes else "",
            ("   lost ", "dim"), (count(total.lost), "red" if total.lost else ""),
        ),
        Text.assemble(("log sync ", "dim"), _syncs(total), ("   READ-ONLY" if total.read_only else "", "bold red")),
        Text(problem or "", style="red"),
    ]  # fmt: skip
    shown = sort_rows(found, order, needle)
    columns = ("topic", "rate>", "head>", "records>", "size>", "lag>", "ready>", "in flight>", "lost>")
    more = len(shown) - room
    keys = f"filter: {needle}█  (Enter keeps it, Esc clears it)" if typing else (
        f"q quit   s sort ({order})   / filter{f' ({needle})' if needle else ''}"
    )  # fmt: skip
    if more > 0:
        keys += f"   {more:,} more topics"
    return Group(*lines, table(columns, [_cells(row) for row in shown[:room]]), Text(""), Text(keys, style="dim"))


def _syncs(total: Overview) -> str:
    if total.fsync_p50_us is None or total.fsync_p99_us is None:
        return "none in this interval"
    return f"p50 ≤ {_bound(total.fsync_p50_us)}, p99 ≤ {_bound(total.fsync_p99_us)}"


def _bound(us: float) -> str:
    return "more" if us == float("inf") else duration(us / 1000)


def _cells(row: TopicRow) -> list[Cell]:
    return [
        Styled(row.topic, "bold"),
        Styled(rate(row.rate), "green" if row.rate else "dim"),
        count(row.head),
        count(row.records),
        size(row.bytes),
        "" if row.lag is None else Styled(count(row.lag), "yellow" if row.lag else "dim"),
        "" if row.ready is None else count(row.ready),
        "" if row.in_flight is None else count(row.in_flight),
        "" if not row.lost else Styled(count(row.lost), "red" if row.losing else "yellow"),
    ]
