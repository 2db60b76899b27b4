"""Decode stored JSON again. Pure.

The nesting depth that a decoder accepts is the rest of the interpreter's recursion limit, so it depends on the depth of
the call stack. A record that was accepted can be decoded again on a deeper stack (to move it to a dead-letter topic, or
to add a stamp), and must not fail there.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Text = TypeVar("Text")

MARGIN = 256  # calls: more than the difference in depth between any two places that decode the same text


def decode_again(decode: Callable[[Text], T], text: Text) -> T:
    """Return `decode(text)`, with a higher recursion limit if it is needed."""
    try:
        return decode(text)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + MARGIN)
        try:
            return decode(text)
        finally:
            sys.setrecursionlimit(limit)
