"""Names of topics, routers and consumers: a fixed set of characters, compared byte by byte, never used as a path."""

import re

from topics.errors import TopicsError, invalid

TOPIC_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
CONSUMER_PATTERN = TOPIC_PATTERN
ROUTER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"

# `\Z`, because `$` also matches before a trailing line break.
_is_topic = re.compile(TOPIC_PATTERN.replace("$", r"\Z")).match
_is_router = re.compile(ROUTER_PATTERN.replace("$", r"\Z")).match


def check_topic(name: str, *, field: str = "topic") -> str:
    """Return the name. Raise `invalid_request` if it is not a topic name."""
    if _is_topic(name) is None:
        raise _bad("topic", name, TOPIC_PATTERN, field)
    return name


def check_consumer(name: str) -> str:
    """Return the name. Raise `invalid_request` if it is not a consumer name."""
    if _is_topic(name) is None:
        raise _bad("consumer", name, CONSUMER_PATTERN, "consumer")
    return name


def check_router(name: str) -> str:
    """Return the name. Raise `invalid_request` if it is not a router name."""
    if _is_router(name) is None:
        raise _bad("router", name, ROUTER_PATTERN, "router")
    return name


def _bad(kind: str, name: str, pattern: str, field: str) -> TopicsError:
    shown = name if len(name) <= 64 else name[:64] + "…"
    return invalid(f"{shown!r} is not a {kind} name: it must match {pattern}", field=field)
