"""The prompt of `topics sql`: statements on one or several lines, with a history and completion."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

HISTORY = "~/.topics_sql_history"
HISTORY_LINES = 1000
PROMPT, MORE = "topics> ", "     -> "
QUIT, ASK_HELP = ("quit", "exit", "\\q"), ("help", "\\h", "?")
HELP = """\
  select …;           a query, on one or several lines; ends with a semicolon
  show tables;        list the tables
  describe orders;    list the columns of a table and the fields of its data
  help, quit          print this text; end the prompt (also Ctrl-D)

Tab completes names. Every topic is a table with the columns topic, seq, ts, node, tag, meta, data. Use paths for fields
of data and meta: data.customer.name, data.items[0].qty. `from orders.*` reads all topics that start with "orders.".
"""
KEYWORDS = (
    "select", "from", "where", "group by", "order by", "limit", "join", "left join", "on", "as", "and", "or", "not",
    "is null", "in", "like", "between", "having", "union all", "with", "case when", "count(*)", "sum(", "min(", "max(",
    "avg(", "distinct", "show tables", "describe", "desc", "interval", "now()",
)  # fmt: skip


def statements(words: Callable[[], list[str]], greeting: str) -> Iterator[str]:
    """Yield the statements that are typed, until quit or the end of input. `words` returns the names to complete."""
    from topics.spark.sql.text import is_whole, split

    print(f"{greeting} End statements with a semicolon. Type help; or quit;.")
    held = ""
    with _line_editing(words):
        while True:
            try:
                line = input(MORE if held else PROMPT)
            except EOFError:
                print()
                return
            except KeyboardInterrupt:
                print()
                held = ""
                continue
            word = "" if held else line.strip().rstrip(";").lower()
            if word in QUIT:
                return
            if word in ASK_HELP:
                print(HELP)
                continue
            held = f"{held}\n{line}" if held else line
            if is_whole(held):
                yield from split(held)
                held = ""
            elif not held.strip():
                held = ""


def completions(words: list[str], begun: str) -> list[str]:
    """Return the keywords and names that begin so, whatever their case."""
    return [word for word in (*KEYWORDS, *words) if word.lower().startswith(begun.lower())]


@contextmanager
def _line_editing(words: Callable[[], list[str]]) -> Iterator[None]:
    """Load and save the history, and complete names, if this Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    found: list[str] = []

    def complete(begun: str, state: int) -> str | None:
        if state == 0:
            found.clear()
            with suppress(Exception):  # a server that does not answer must not end the prompt
                found.extend(completions(words(), begun))
        return found[state] if state < len(found) else None

    path = os.path.expanduser(HISTORY)
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_completer(complete)
    readline.set_completer_delims(re.sub(r"[.:\-*]", "", readline.get_completer_delims()))  # these are part of names
    is_libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if is_libedit else "tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(path)
