"""Decode JSON that a request has brought in before. Pure.

The depth of JSON that a decoder takes is what is left of the interpreter's recursion limit, so it depends on how many
calls are under way. A record that was accepted a few calls deep may be decoded again (to move it to a dead-letter
topic, to stamp it) where more calls are under way. It must not fail there.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
Text = TypeVar("Text")

MARGIN = 256  # calls: more than lie between any two places that decode the same text


def decode_again(decode: Callable[[Text], T], text: Text) -> T:
    """Return `decode(text)`, with more room for nesting than the first decoder had."""
    try:
        return decode(text)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + MARGIN)
        try:
            return decode(text)
        finally:
            sys.setrecursionlimit(limit)
