"""The output of one command: for a person on a terminal, as JSON lines otherwise. The only place that decides which."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from topics.cli.output.failures import usage
from topics.cli.output.units import printable

KEPT_CHARS = 32
STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Styled(NamedTuple):
    """Text in a style of `STYLES`, for a cell of a table."""

    text: str
    style: str


Cell = str | Styled
Columns = Mapping[str, Callable[[Any], Cell]]  # the cell of a row, by the name of the column


class Screen:
    """Prints results to standard output, and notes and questions to standard error.

    `is_human` says whether a person reads: standard output is a terminal, and `--json` was not given.
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.is_human = sys.stdout.isatty() and not as_json
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._colours_out = self.is_human and not plain
        self._colours_err = sys.stderr.isatty() and not plain

    # --- results

    def json(self, answer: object) -> None:
        """Print a value as one line of JSON. Bytes are JSON already."""
        sys.stdout.buffer.write((answer if isinstance(answer, bytes) else json_text(answer)) + b"\n")

    def result(self, answer: object, text: str) -> None:
        """Print an answer: as text for a person, otherwise as JSON."""
        if self.is_human:
            self.line(text)
        else:
            self.json(answer)

    def rows(
        self, rows: Sequence[Any], columns: Columns, *, empty: str = "", decode: Callable[[Any], Any] = lambda row: row
    ) -> None:
        """Print a table for a person, or `empty` if it has no rows; otherwise each row as JSON.

        `decode` returns what the columns get of a row.
        """
        if not self.is_human:
            for row in rows:
                self.json(row)
        elif rows:
            from rich.console import Console

            console = Console(file=sys.stdout, highlight=False, no_color=not self._colours_out, soft_wrap=False)
            console.print(table(columns, [decode(row) for row in rows]))
        elif empty:
            self.note(empty)

    def line(self, text: str = "") -> None:
        print(text)

    def fields(self, answer: Mapping[str, Any], shown: Iterable[tuple[str, Cell]]) -> None:
        """Print an answer: its fields in two columns for a person, otherwise the whole answer as JSON."""
        if not self.is_human:
            self.json(answer)
            return
        rows = list(shown)
        width = max((len(name) for name, _ in rows), default=0)
        for name, cell in rows:
            text, style = cell if isinstance(cell, Styled) else (cell, "")
            self.line(f"{self.paint(name.ljust(width), 'dim')}  {self.paint(printable(text), style)}")

    def paint(self, text: str, style: str) -> str:
        """Return text in a style, if standard output shows colours."""
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and self._colours_out else text

    # --- beside the results

    def note(self, text: str, style: str = "dim") -> None:
        self.flush()
        print(self._paint_err(text, style), file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}", "yellow")

    def fail(self, message: str, next_step: str = "") -> None:
        self.flush()
        print(f"{self._paint_err('topics:', 'red')} {message}", file=sys.stderr)
        if next_step:
            print(f"{self._paint_err('next:', 'cyan')} {next_step}", file=sys.stderr)
        sys.stderr.flush()

    def flush(self) -> None:
        sys.stdout.flush()

    def _paint_err(self, text: str, style: str) -> str:
        return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if style and self._colours_err else text


def highlighted(number: int, style: str) -> Cell:
    """Return a number in a style, unless it is 0."""
    return Styled(f"{number:,}", style if number else "dim")


def table(columns: Columns, rows: Sequence[Any]) -> Any:
    """Return a `rich` table without lines. A column whose name ends in `>` is aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    texts = [[cell if isinstance(cell, Styled) else Styled(cell, "") for cell in row] for row in cells]
    for at, name in enumerate(columns):
        # Only the last column and very long names are cut when the terminal is narrow.
        width = max([len(name.rstrip(">")), *(len(row[at].text) for row in texts)])
        made.add_column(
            name.rstrip(">"),
            justify="right" if name.endswith(">") else "left",
            min_width=None if at == len(columns) - 1 else min(width, KEPT_CHARS),
            overflow="ellipsis",
            no_wrap=True,
        )
    for row in texts:
        made.add_row(*(Text(printable(cell.text), style=cell.style) for cell in row))
    return made


def json_text(value: Any) -> bytes:
    """Return a value as compact JSON in UTF-8. Half a surrogate pair, which UTF-8 cannot hold, is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def pretty_json(value: object) -> str:
    """Return JSON for standard output: indented on a terminal, and one line for programs, which may read lines."""
    import msgspec

    encoded = msgspec.json.encode(value, enc_hook=str)  # a report of damage is a string with attributes
    return msgspec.json.format(encoded, indent=2 if sys.stdout.isatty() else 0).decode()


def confirm(question: str) -> None:
    """Ask on the terminal before something is destroyed. Raise `Failure` unless the answer is yes."""
    if not sys.stdin.isatty():
        raise usage(f"{question.rstrip('?')} needs a confirmation", "pass --yes, since standard input is no terminal")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise usage("nothing was changed")
