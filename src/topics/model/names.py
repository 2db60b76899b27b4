"""Names of topics, routers, schedules, consumers and keys: some characters, compared byte by byte, never a path."""

import re
from functools import partial

from topics.errors import invalid

TOPIC_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$"
ROUTER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$"

AUDIT = "$audit"  # the topic of the server, which matches no pattern above

# `\Z`, because `$` also matches before a trailing line break.
_is_topic = re.compile(TOPIC_PATTERN.replace("$", r"\Z")).match
_is_router = re.compile(ROUTER_PATTERN.replace("$", r"\Z")).match


def check_topic(name: str, *, field: str = "topic", kind: str = "topic") -> str:
    """Return the name. Raise `invalid_request` if it is not a name of this kind."""
    if (_is_router if kind == "router" else _is_topic)(name) is None:
        shown = name if len(name) <= 64 else name[:64] + "…"
        pattern = ROUTER_PATTERN if kind == "router" else TOPIC_PATTERN
        raise invalid(f"{shown!r} is not a {kind} name: it must match {pattern}", field=field)
    return name


check_consumer = partial(check_topic, field="consumer", kind="consumer")
check_schedule = partial(check_topic, field="schedule", kind="schedule")
check_key = partial(check_topic, field="key", kind="key")
check_router = partial(check_topic, field="router", kind="router")
