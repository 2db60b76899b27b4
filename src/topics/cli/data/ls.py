"""`topics ls`: the topics of a server, with sizes, rates and lag."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from topics.cli.command import Call, Command
from topics.cli.connect.server import get
from topics.cli.options import option
from topics.cli.output.screen import Cell, Styled
from topics.cli.output.units import count, rate, size
from topics.plurals import counted

Topics = dict[str, dict[str, Any]]


@Command(
    "ls",
    options=(
        option("[PATTERN]", "a prefix, or a pattern such as 'chat-*'", default="", completes="topics"),
        option("--rates DURATION", "measure the records per second over this time [1s]", nargs="?", const=1000),
        option("--sort", "order [name]", choices=("name", "records", "size", "rate", "lag"), default="name"),
    ),
    request=lambda args: get("/v0/topics", prefix=args.pattern.partition("*")[0] or None, details=True),
    details="The lag is that of the slowest router or named consumer that reads the topic.",
    examples="  topics ls\n  topics ls 'chat-*' --rates 5s --sort rate\n  topics ls | jq -r .topic\n",
)
def ls(call: Call) -> None:
    found = _list(call)
    _add_jobs_and_lag(call, found)
    window_ms = call.args.rates or (1000 if call.args.sort == "rate" else 0)
    if window_ms:
        _add_rates(call, found, window_ms)
    rows = sorted(found.values(), key=lambda row: row["topic"])
    if call.args.sort != "name":
        member = {"records": "count", "size": "bytes"}.get(call.args.sort, call.args.sort)
        rows.sort(key=lambda row: -(row.get(member) or 0))
    if not call.screen.is_human:
        for row in rows:
            call.screen.json(row)
    elif rows:
        _print(call, rows, rates=bool(window_ms))
    else:
        call.screen.note("no topics; `topics append NAME 'hello'` creates one")


def _list(call: Call) -> Topics:
    pattern = call.args.pattern
    rows = call.server.rows(call.request(call.args).path, "topics")
    return {row["topic"]: row for row in rows if "*" not in pattern or fnmatchcase(row["topic"], pattern)}


def _add_jobs_and_lag(call: Call, found: Topics) -> None:
    """Add the jobs of queues, and the lag of the slowest router or consumer that reads a topic."""
    figures = {"lag": call.server.lags()}
    if any(row["type"] == "queue" for row in found.values()):
        metrics = call.server.json(get("/v0/metrics"))
        figures |= {name: metrics.get(f"topics_topic_queue_{name}") or {} for name in ("ready", "in_flight")}
    for name, by_topic in figures.items():
        for topic in found.keys() & by_topic.keys():
            found[topic][name] = by_topic[topic]


def _add_rates(call: Call, found: Topics, window_ms: int) -> None:
    """Measure how fast the heads move."""
    began = time.monotonic()
    time.sleep(window_ms / 1000)
    later, took_s = _list(call), time.monotonic() - began
    for topic, row in found.items():
        now = later.get(topic, row)
        row["rate"] = round(max(now["head_seq"] - row["head_seq"], 0) / took_s, 1)


def _print(call: Call, rows: list[dict[str, Any]], *, rates: bool) -> None:
    losses = any(row.get("lost") for row in rows)
    extra = [*(["lost>"] if losses else []), *(["rate>"] if rates else [])]
    columns = ["topic", "type", "records>", "size>", "head>", "lag>", *extra, "jobs"]
    call.screen.table(columns, [_cells(row, losses=losses, rates=rates) for row in rows])
    call.screen.note(
        f"{counted(len(rows), 'topic')}, {counted(sum(row['count'] for row in rows), 'record')}, "
        f"{size(sum(row['bytes'] for row in rows))}"
    )


def _cells(row: Mapping[str, Any], *, losses: bool, rates: bool) -> list[Cell]:
    lag, lost = row.get("lag"), row.get("lost")
    cells: list[Cell] = [
        Styled(row["topic"], "bold"),
        row["type"],
        count(row["count"]),
        size(row["bytes"]),
        count(row["head_seq"]),
        "" if lag is None else Styled(count(lag), "yellow" if lag else "dim"),
    ]
    if losses:
        cells.append(Styled(count(lost), "red") if lost else "")
    if rates:
        cells.append(rate(row["rate"]))
    jobs = f"{row.get('ready', 0):,} ready, {row.get('in_flight', 0):,} in flight" if row["type"] == "queue" else ""
    return [*cells, jobs]


register = ls.register
