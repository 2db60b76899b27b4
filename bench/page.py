"""The results on docs/benchmarks.md: the newest figure of every row, with its date and machine, and the chart.

python bench/page.py            writes the page and the chart from bench/results/*.json
python bench/page.py --check    ends with 1 if they are not current
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import chart
import report
from plan import HERE
from rows import ROWS

RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"
CHART = HERE.parent / "docs" / "images" / "benchmarks.svg"
BEGIN, END = "<!-- results: written by bench/page.py -->", "<!-- end of results -->"


class Measured(NamedTuple):
    """One row of one run."""

    result: report.Result
    machine: dict[str, str]

    @property
    def date(self) -> str:
        return self.machine["date"]


def newest(directory: Path) -> list[Measured]:
    """Return the newest result of each row that has one, in the order of the rows. Quick runs do not count."""
    found: dict[str, Measured] = {}
    for path in sorted(directory.glob("*.json")):
        if path.stem == "quick":
            continue
        machine, results = report.load(path, ROWS)
        for result in results:
            row_id = result.row.id
            if not result.error and (row_id not in found or found[row_id].date < machine["date"]):
                found[row_id] = Measured(result, machine)
    return [found[row.id] for row in ROWS if row.id in found]


def section(measured: list[Measured]) -> str:
    """Return the Markdown between the marks of the page."""
    missing = [row.id for row in ROWS if row.id not in {one.result.row.id for one in measured}]
    parts = ["", f"![How far each figure is from its bar](images/{CHART.name})", ""]
    parts += ["| row | figure | value | bar | goal | verdict | measured |", "|---|---|---|---|---|---|---|"]
    for one in measured:
        for ask, reading in one.result.answers():
            note = f" ({reading.note})" if reading.note else ""
            cells = (
                one.result.row.id, ask.key, report.figure(ask, reading), ask.bar or "-", ask.goal or "-",
                report.verdict(ask, reading) + note, one.date.split()[0],
            )  # fmt: skip
            parts.append(f"| {' | '.join(map(str, cells))} |")
    if missing:
        parts += ["", f"Not measured yet in the form of this table: {', '.join(missing)}."]
    parts += ["", "| run | machine |", "|---|---|"]
    for date, machine in sorted({one.date: one.machine for one in measured}.items()):
        described = "; ".join(f"{name}: {value}" for name, value in machine.items() if name != "date")
        parts.append(f"| {date} | {described} |")
    return "\n".join([*parts, "", ""])


def page_with(text: str, results: str) -> str:
    """Return the page with the results between its marks. Raise `ValueError` if it has no marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no {BEGIN} … {END}")
    return f"{before}{begin}\n{results}{end}{after}"


def chart_of(measured: list[Measured]) -> str:
    """Return the chart as SVG."""
    with tempfile.TemporaryDirectory() as directory:
        written = chart.write([one.result for one in measured], Path(directory) / "chart")
        return written[0].read_text() if written else ""


def main(argv: list[str]) -> int:
    measured = newest(RESULTS)
    page, picture = page_with(PAGE.read_text(), section(measured)), chart_of(measured)
    if "--check" in argv:
        current = PAGE.read_text() == page and CHART.read_text() == picture
        print("current" if current else "docs/benchmarks.md is not current; run python bench/page.py")
        return int(not current)
    PAGE.write_text(page)
    CHART.write_text(picture)
    print(f"written: {PAGE}, {CHART}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
