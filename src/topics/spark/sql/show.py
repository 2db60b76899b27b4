"""Print the rows of an answer as a table, JSON, JSON lines, JSON arrays or CSV, or write them as Parquet."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow.parquet as pq
from rich.cells import cell_len

from topics.plurals import counted
from topics.spark.sql.tables import Answer
from topics.spark.sql.text import BadQuery

TABLE_ROWS = 1000
CELL_WIDTH = 80


def lines(answer: Answer, form: str, *, limit: int | None = None) -> Iterator[str]:
    """Yield the rows as lines of text. A table needs its column widths first, so it shows `TABLE_ROWS` by default."""
    names = answer.columns
    if form == "table":
        shown = TABLE_ROWS if limit is None else limit
        found = list(answer.rows(shown + 1))
        yield from _table(names, [[_cell(value) for value in row] for row in found[:shown]])
        if len(found) > shown and limit is None:
            yield f"the first {counted(shown, 'row')}; --limit N shows more, --csv and --json all"
        else:
            yield counted(min(len(found), shown), "row")
        return
    if form == "csv":
        yield _csv(names)
        for row in answer.rows(limit):
            yield _csv([_cell(value, null="") for value in row])
        return
    if form == "arrays":  # the first one has the names
        yield _json(names)
        yield from (_json([*map(plain, row)]) for row in answer.rows(limit))
        return
    _check_names(names, "JSON")
    texts = (_json(dict(zip(names, map(plain, row), strict=True))) for row in answer.rows(limit))
    yield from texts if form == "jsonl" else _array(texts)


def write_parquet(answer: Answer, path: str, *, limit: int | None = None) -> int:
    """Write the rows to a new file, and return how many they are."""
    _check_names(answer.columns, "Parquet")
    table = answer.arrow().slice(0, limit)
    temporary = f"{path}.part"
    pq.write_table(table, temporary)
    os.replace(temporary, path)
    return int(table.num_rows)


def _check_names(names: list[str], form: str) -> None:
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadQuery(
            f"several columns are called {', '.join(sorted(twice))}; {form} needs distinct names: rename them with AS"
        )


def _array(texts: Iterable[str]) -> Iterator[str]:
    """Yield one JSON array with one element per line, while rows still arrive."""
    before, held = "[", None
    for text in texts:
        if held is not None:
            yield f"{before}{held},"
            before = " "
        held = text
    yield f"{before}{held or ''}]"


def _table(names: list[str], rows: list[list[str]]) -> Iterator[str]:
    flat = [[cell.replace("\n", "⏎").replace("\t", " ") for cell in row] for row in [names, *rows]]
    cut = [[cell if len(cell) <= CELL_WIDTH else cell[: CELL_WIDTH - 1] + "…" for cell in row] for row in flat]
    widths = [max(cell_len(row[at]) for row in cut) for at in range(len(names))]
    right = [bool(rows) and all(_is_number(row[at]) for row in rows) for at in range(len(names))]
    for number, row in enumerate(cut):
        spaces = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (space + cell if side else cell + space for cell, space, side in zip(row, spaces, right, strict=True))
        yield "  ".join(cells).rstrip()
        if number == 0:
            yield "  ".join("-" * width for width in widths)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return text == "NULL"
    return True


def _cell(value: Any, *, null: str = "NULL") -> str:
    if value is None:
        return null
    shown = plain(value)
    return shown if isinstance(shown, str) else _json(shown)


def plain(value: Any) -> Any:
    """Return a value of Spark or Arrow as a value that JSON can represent."""
    match value:
        case tuple() if hasattr(value, "asDict"):  # a row of Spark
            return {name: plain(inner) for name, inner in value.asDict().items()}
        case dict():
            return {str(plain(name)): plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case datetime.datetime():
            return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case datetime.date() | datetime.time() | datetime.timedelta():
            return str(value)
        case decimal.Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
    return json.loads(value.toJson()) if hasattr(value, "toJson") else str(value)  # a VARIANT, or an interval


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _csv(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(cells)
    return out.getvalue()
