"""Query strings: typed parameters and opaque list cursors. Pure."""

from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from urllib.parse import parse_qsl

import msgspec

from topics.errors import invalid

PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

_TRUE, _FALSE = ("true", "1"), ("false", "0")


def parse(query: bytes) -> dict[str, str]:
    """Return the parameters by name; the first of several with one name counts. Raise `invalid_request`."""
    if not query:
        return {}
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise invalid("the query string is not percent-encoded UTF-8, or has too many fields") from None
    for name, value in pairs:
        found.setdefault(name, value)
    return found


def flag(found: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = found.get(name)
    if value is None:
        return default
    if value.lower() in _TRUE:
        return True
    if value.lower() in _FALSE:
        return False
    raise invalid(f"{name} must be true or false", field=name)


def number(found: dict[str, str], name: str, *, default: int) -> int:
    value = found.get(name)
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise invalid(f"{name} must be a whole number", field=name)
    return int(value)


def page_size(found: dict[str, str]) -> int:
    return min(number(found, "page_size", default=PAGE_SIZE) or PAGE_SIZE, MAX_PAGE_SIZE)


_decode = msgspec.json.Decoder(dict[str, str]).decode


def cursor_after(found: dict[str, str]) -> str:
    """Return the last name of the page before; "" for the first page. Raise `invalid_request`."""
    text = found.get("cursor")
    if not text:
        return ""
    try:
        raw = text.encode("ascii")
        padded = raw + b"=" * (-len(raw) % 4)
        decode = urlsafe_b64decode if b"-" in raw or b"_" in raw else lambda data: b64decode(data, validate=True)
        return _decode(decode(padded))["after"]
    except (ValueError, KeyError, RecursionError, msgspec.MsgspecError):
        raise invalid(
            "cursor is not one that this server returned; use next_cursor of the page before", field="cursor"
        ) from None


def cursor(after: str) -> str:
    return urlsafe_b64encode(msgspec.json.encode({"after": after})).decode()
