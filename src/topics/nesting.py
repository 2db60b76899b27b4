"""How deep calls may nest. The only module that changes the recursion limit of the interpreter.

The nesting depth that a decoder of JSON accepts is the rest of the limit, so it depends on the depth of the call stack.
A record that was accepted can be decoded again on a deeper stack (to move it to a dead-letter topic, or to add a
stamp), and must not fail there.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
Text = TypeVar("Text")

MARGIN = 256  # calls: more than the difference in depth between any two places that decode the same text


def decode_again(decode: Callable[[Text], T], text: Text) -> T:
    """Return `decode(text)`, with a higher recursion limit if it is needed."""
    try:
        return decode(text)
    except RecursionError:
        with limit_restored():
            allow_depth(sys.getrecursionlimit() + MARGIN)
            return decode(text)


def allow_depth(calls: int) -> None:
    """Let at least this many calls nest. Use it within `limit_restored`."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), calls))


@contextmanager
def limit_restored() -> Iterator[None]:
    """Restore the present limit at the end of this context."""
    limit = sys.getrecursionlimit()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
