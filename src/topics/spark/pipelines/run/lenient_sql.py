"""Rewrite SQL of the user so that casts of fields of `value` return NULL for a value that does not fit. Pure.

Spark fails at `value:price::int` for a price of "cheap", and one such record would end every run. Topics have no
schema, so records of another type are expected. Only casts of `value` are rewritten: other errors in an expression are
still reported.
"""

from __future__ import annotations

from topics.spark.sql.rewrite import VARIANT, SqlToken, tokens

_CLOSING = {"(": ")", "[": "]", "<": ">"}


def lenient(text: str) -> str:
    """Rewrite `value:price::int` and `CAST(value:price AS int)` to `try_cast(value:price AS int)`."""
    found = [token for token in tokens(text) if token.kind != "space"]
    edits: list[tuple[int, int, str]] = []
    at = 0
    while at < len(found):
        token = found[at]
        if token.word == "cast" and _is(found, at + 1, "(") and _is_value(found, at + 2):
            edits.append((token.at, token.end, "try_cast"))
            at += 2
        elif _is_value(found, at):
            stop = _path_end(found, at)
            start, end = token.at, found[stop - 1].end
            new, after = text[start:end], stop
            while _is(found, after, ":") and _is(found, after + 1, ":") and after + 2 < len(found):
                last = _type_end(found, after + 2)
                new = f"try_cast({new} AS {text[found[after + 2].at : found[last - 1].end]})"
                after = last
            if after > stop:
                edits.append((start, found[after - 1].end, new))
            at = after
        else:
            at += 1
    for start, end, new in reversed(edits):
        text = text[:start] + new + text[end:]
    return text


def _is(found: list[SqlToken], at: int, sign: str) -> bool:
    return at < len(found) and found[at].kind == "sign" and found[at].text == sign


def _is_value(found: list[SqlToken], at: int) -> bool:
    """Return whether the token is `value`, followed by a field or a cast."""
    return at < len(found) and found[at].is_name and found[at].name.lower() == VARIANT and _is(found, at + 1, ":")


def _path_end(found: list[SqlToken], at: int) -> int:
    """Return the index after `value:a.b[0]`, or after `value` if it has no path."""
    at += 1
    if _is(found, at + 1, ":"):
        return at
    at += 1
    if _is(found, at, "["):
        at = _closed(found, at)
    else:
        at += 1
    while at < len(found) and (_is(found, at, ".") or _is(found, at, "[")):
        at = _closed(found, at) if _is(found, at, "[") else at + 2
    return min(at, len(found))


def _type_end(found: list[SqlToken], at: int) -> int:
    """Return the index after a type such as `int`, `decimal(10, 2)` or `array<int>`."""
    nested = found[at].word in ("array", "map", "struct") and _is(found, at + 1, "<")
    sized = found[at].word in ("decimal", "dec", "numeric", "char", "varchar") and _is(found, at + 1, "(")
    return _closed(found, at + 1) if nested or sized else at + 1


def _closed(found: list[SqlToken], at: int) -> int:
    """Return the index after the bracket that closes the one at `at`."""
    opening, depth = found[at].text, 0
    while at < len(found):
        depth += (found[at].text == opening) - (found[at].text == _CLOSING[opening])
        at += 1
        if depth == 0:
            break
    return at
