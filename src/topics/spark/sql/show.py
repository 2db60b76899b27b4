"""Print the rows of a query as a table, JSON, JSON lines, or CSV."""

from __future__ import annotations

import base64
import csv
import datetime
import decimal
import io
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pyspark.sql import DataFrame, Row
from rich.cells import cell_len

from topics.plurals import counted
from topics.spark.sql.text import BadQuery

TABLE_ROWS = 1000
CELL_WIDTH = 80


def lines(frame: DataFrame, form: str, *, limit: int | None = None) -> Iterator[str]:
    """Yield the rows as lines of text. A table needs its column widths first, so it shows `TABLE_ROWS` by default."""
    names = frame.columns
    if form == "table":
        shown = TABLE_ROWS if limit is None else limit
        found = frame.limit(shown + 1).collect()
        yield from _table(names, [[_cell(value) for value in row] for row in found[:shown]])
        if len(found) > shown and limit is None:
            yield f"the first {counted(shown, 'row')}; --limit N shows more, --csv and --json all"
        else:
            yield counted(min(len(found), shown), "row")
        return
    rows = frame.toLocalIterator() if limit is None else islice(frame.toLocalIterator(), limit)
    if form == "csv":
        yield _csv(names)
        for row in rows:
            yield _csv([_cell(value, null="") for value in row])
        return
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadQuery(
            f"several columns are called {', '.join(sorted(twice))}; JSON needs distinct names: rename them with AS"
        )
    texts = (_json(dict(zip(names, map(_plain, row), strict=True))) for row in rows)
    yield from texts if form == "jsonl" else _array(texts)


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
    plain = _plain(value)
    if isinstance(plain, str):
        return plain
    return _json(plain)


def _plain(value: Any) -> Any:
    """Return a Spark value as a value that JSON can represent."""
    match value:
        case Row():
            return {name: _plain(inner) for name, inner in value.asDict().items()}
        case dict():
            return {str(_plain(name)): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
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
