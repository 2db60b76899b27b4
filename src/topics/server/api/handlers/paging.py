"""Lists of topics, routers and schedules: a page by name, in steps."""

from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from topics.engine.state.name_index import NameIndex
from topics.engine.steps import Steps
from topics.server.api.route import Call
from topics.server.http.messages import Answer
from topics.server.http.request import query_string
from topics.server.loop.answer import json_answer, performance

ROWS_PER_STEP = 25  # one takes 4 to 90 µs

T = TypeVar("T")


def page_answer(
    call: Call,
    names: NameIndex,
    find: Callable[[str], T | None],
    summary: Callable[[T], Any],
    answer: Callable[..., Any],
) -> Steps[Answer]:
    """Return a page of what `find` returns for the names that the caller may see; None leaves a row out.

    Looks at the rows of the page, and at those that are left out, `ROWS_PER_STEP` in a step. Rows that are created or
    deleted between two steps may be on the page or not.
    """
    found = query_string.parse(call.request.query)
    after, limit, prefix = query_string.cursor_after(found), query_string.page_size(found), found.get("prefix", "")
    prefixes, page, last, more = call.caller.prefixes, list[Any](), "", False
    # Bound: each round looks at names behind those of the round before.
    while not more and (some := list(islice(names.visible(prefixes, prefix=prefix, after=after), ROWS_PER_STEP))):
        after = some[-1]
        for name in some:
            if (row := find(name)) is not None:
                if more := len(page) == limit:
                    break
                page.append(summary(row))
                last = name
        yield None
    return json_answer(200, answer(page, performance(call.request), query_string.cursor(last) if more else None))
