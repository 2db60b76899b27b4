"""A run as text for the terminal, as Markdown for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from plan import INSTALL_HINT
from row import BUSY_ENOUGH, Ask, Limit, Outcome, Reading, Row, Side

CROWD_NOTE = (
    "A server that was busy for clearly less than all of its core was held up: by its load generator, by the disk, "
    "or by other processes on the machine. What it did for each second of processor time is then the figure to look at."
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of one run."""

    row: Row
    outcome: Outcome
    took_s: float
    error: str = ""

    def answers(self) -> list[tuple[Ask, Reading]]:
        """Return every ask with its reading, in the order of declaration."""
        by_key = {reading.key: reading for reading in self.outcome.readings}
        blank = "the row failed" if self.error else ""
        return [(ask, by_key.get(ask.key, Reading(key=ask.key, value=None, note=blank))) for ask in self.row.asks]


def verdict(ask: Ask, reading: Reading) -> str:
    if reading.missing:
        return "peer missing"
    if reading.value is None:
        return "not measured"
    if ask.bar and ask.cpu_bound and reading.per_cpu_s and _disagree(ask.bar, reading.value, reading.per_cpu_s):
        return "UNSURE: CROWDED"
    if ask.bar and not ask.bar.holds(reading.value):
        return "UNSURE: CROWDED" if reading.crowded else "BELOW THE BAR"
    if ask.goal:
        return "goal met" if ask.goal.holds(reading.value) else "bar met" if ask.bar else "below the goal"
    return "bar met" if ask.bar else "printed"


def _disagree(bar: Limit, value: float, per_cpu_s: float) -> bool:
    """Return whether the bar holds by the clock but not by processor time, or the other way round.

    Of two servers that are both held up, the slower one gets the larger share of what is left: a crowd makes ratios
    better than they are.
    """
    return bar.holds(value) != bar.holds(per_cpu_s)


def exit_code(results: list[Result], *, strict: bool) -> int:
    """Return the exit status: a broken row fails the run, a missed bar only with `strict`."""
    if any(result.error for result in results):
        return 1
    verdicts = (verdict(ask, reading) for result in results for ask, reading in result.answers())
    return int(strict and "BELOW THE BAR" in verdicts)


def figure(ask: Ask, reading: Reading) -> str:
    if reading.value is None:
        return "-"
    digits = 0 if reading.value >= 1000 else 1 if ask.unit == "bytes" or reading.value >= 10 else 2
    return f"{reading.value:,.{digits}f} {ask.unit}"


def as_text(result: Result) -> str:
    lines = [f"     FAILED: {result.error}"] if result.error else []
    lines += [_side_text(side) for side in result.outcome.sides]
    for ask, reading in result.answers():
        bounds = f"bar {ask.bar or '-'}, goal {ask.goal or '-'}"
        note = f"  ({reading.note})" if reading.note else ""
        lines.append(f"     = {ask.key:40} {figure(ask, reading):>12}  {verdict(ask, reading):15} {bounds}{note}")
    lines.append(f"     {result.took_s:.0f} s")
    return "\n".join(lines)


def _side_text(side: Side) -> str:
    busy = "" if side.busy is None else f"  server busy {side.busy:4.0%}"
    if side.per_cpu_s is not None:
        busy += f", {_amount(side.per_cpu_s)} a cpu-s"
    latency = "" if side.p50_ms is None else f"  p50 {side.p50_ms:.2f} ms, p99 {side.p99_ms:.2f} ms"
    return f"       {side.name:46} {_amount(side.median):>12} {side.unit:12}{busy}{latency}"


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def write(results: list[Result], target: Path, *, pictures: list[Path], machine: dict[str, str]) -> None:
    target.with_suffix(".json").write_text(json.dumps(_as_json(results, machine), indent=1) + "\n")
    target.with_suffix(".md").write_text(_as_markdown(results, machine, pictures))


def describe_machine(work_dir: Path) -> dict[str, str]:
    """Return the description of machine, versions and settings that the figures depend on."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "?")
    cores = sum(line.startswith("processor") for line in _lines("/proc/cpuinfo"))
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "cpu": f"{cpu}, {cores} cores",
        "load before": f"{os.getloadavg()[0]:.2f}",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "redis": _first_line("redis-server", "--version"),
        "nats": _first_line("nats-server", "--version"),
        "wrk": _first_line("wrk", "--version"),
        "data on": _first_line("stat", "-f", "-c", "%T", str(work_dir)),
        "commit": _first_line("git", "rev-parse", "--short", "HEAD"),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return "not installed"
    return (done.stdout or "-").splitlines()[0].split(" sha=")[0].split(" Copyright")[0]


def _as_json(results: list[Result], machine: dict[str, str]) -> dict[str, Any]:
    return {"machine": machine, "rows": [_row_json(result) for result in results]}


def _row_json(result: Result) -> dict[str, Any]:
    figures = [
        {
            "ask": ask.key,
            "value": reading.value,
            "unit": ask.unit,
            "bar": str(ask.bar) if ask.bar else None,
            "goal": str(ask.goal) if ask.goal else None,
            "per_cpu_s": reading.per_cpu_s,
            "missing": reading.missing,
            "crowded": reading.crowded,
            "verdict": verdict(ask, reading),
            "note": reading.note,
        }
        for ask, reading in result.answers()
    ]
    return {
        "id": result.row.id,
        "title": result.row.title,
        "peer": result.row.peer,
        "error": result.error,
        "took_s": round(result.took_s, 1),
        "figures": figures,
        "sides": [asdict(side) for side in result.outcome.sides],
    }


def load(path: Path, rows: Sequence[Row]) -> tuple[dict[str, str], list[Result]]:
    """Return the machine and the results of a run that `write` has written. Rows that no longer exist are left out."""
    content = json.loads(path.read_text())
    by_id = {row.id: row for row in rows}
    return content["machine"], [_result(by_id[row["id"]], row) for row in content["rows"] if row["id"] in by_id]


def _result(row: Row, stored: dict[str, Any]) -> Result:
    readings = [
        Reading(
            key=figure["ask"],
            value=figure["value"],
            per_cpu_s=figure.get("per_cpu_s"),
            note=figure["note"],
            missing=figure.get("missing", figure["verdict"] == "peer missing"),
            crowded=figure.get("crowded", False),
        )
        for figure in stored["figures"]
    ]
    sides = [Side(**{**side, "rounds": tuple(side["rounds"])}) for side in stored["sides"]]
    return Result(row=row, outcome=Outcome(readings, sides), took_s=stored["took_s"], error=stored["error"])


def _as_markdown(results: list[Result], machine: dict[str, str], pictures: list[Path]) -> str:
    parts = ["# Benchmark results", "", _machine_line(machine), ""]
    if pictures:
        parts += [f"![How far each figure is from its bar]({pictures[0].name})", ""]
    parts += ["| row | work | against | figure | bar | goal | verdict |", "|---|---|---|---|---|---|---|"]
    for result in results:
        parts += [_table_line(result.row, ask, reading) for ask, reading in result.answers()]
    if any(reading.missing for result in results for reading in result.outcome.readings):
        parts += ["", f"A missing peer is installed with `{INSTALL_HINT}`."]
    for result in results:
        if result.error:
            parts += ["", f"**{result.row.id} failed.**", "", "```", result.error, "```"]
    parts += ["", "## Absolute figures", "", "Printed for the curious, never judged: they are this machine's.", ""]
    parts += ["| row | side | median | rounds | server busy | per cpu-second | p50 / p99 ms |", "|---|" + "---|" * 6]
    parts += [_side_line(result.row, side) for result in results for side in result.outcome.sides]
    parts += ["", CROWD_NOTE]
    return "\n".join(parts) + "\n"


def _machine_line(machine: dict[str, str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in machine.items()) + "."


def _table_line(row: Row, ask: Ask, reading: Reading) -> str:
    note = f" ({reading.note})" if reading.note else ""
    cells = (row.id, row.title, ask.key, figure(ask, reading), ask.bar or "-", ask.goal or "-")
    return f"| {' | '.join(map(str, cells))} | {verdict(ask, reading)}{note} |"


def _side_line(row: Row, side: Side) -> str:
    rounds = ", ".join(_amount(value) for value in side.rounds)
    busy = "-" if side.busy is None else f"{side.busy:.0%}{'' if side.busy >= BUSY_ENOUGH else ' (held up)'}"
    latency = "-" if side.p50_ms is None else f"{side.p50_ms:.2f} / {side.p99_ms:.2f}"
    per_cpu_s = "-" if side.per_cpu_s is None else _amount(side.per_cpu_s)
    cells = (row.id, side.name, f"{_amount(side.median)} {side.unit}", rounds, busy, per_cpu_s, latency)
    return f"| {' | '.join(cells)} |"
