"""The options `--tag`, `--where` and `--grep`: which records a command reads, watches or copies."""

from __future__ import annotations

import json
from argparse import ArgumentTypeError
from typing import Any

from topics.cli.command import Args
from topics.cli.options import option
from topics.errors import TopicsError


def _where(text: str) -> str:
    """Return the text of a filter. Point at the place of an error."""
    from topics.model.filters import parse_filter  # only this option needs it

    try:
        parse_filter(["Where", text], field="--where")
    except TopicsError as error:
        at = (error.detail or {}).get("position", 1)
        what = error.message.removeprefix("--where[1]: ")
        raise ArgumentTypeError(f"{what}\n  {text}\n  {'^':>{at}}") from None
    return text


FILTERS = (
    option("--tag TAG", "only this tag; a trailing * matches the beginning"),
    option("--where FILTER", "only where this holds, such as 'customer.id = 7 and total > 100'", type=_where),
    option("--grep TEXT", "only records with this text in their data"),
)


def filter_of(args: Args) -> Any:
    """Return the filter of the options as the server takes it; None without any of them."""
    tag, where, grep = args.tag, args.where, args.grep
    parts = [
        *([] if tag is None else [["tag", "Glob" if tag.endswith("*") else "Eq", tag]]),
        *([] if where is None else [["Where", where]]),
        *([] if grep is None else [["data", "Grep", grep]]),
    ]
    return ["And", parts] if len(parts) > 1 else parts[0] if parts else None


def filter_text(filter: list[Any]) -> str:
    """Return a filter of a router for a person."""
    tagged = len(filter) == 3 and filter[0] == "tag" and isinstance(filter[2], str)
    return f"tag {filter[2]}" if tagged else filter[1] if filter[0] == "Where" else json.dumps(filter)
