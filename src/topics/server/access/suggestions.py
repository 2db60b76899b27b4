"""Names that a client may have meant: for errors about topics that do not exist."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice

from topics.engine.state.topics import State
from topics.errors import Code, TopicsError
from topics.server.access.caller import Caller

LOOKED_AT = 300  # of the names that begin alike: comparing one takes up to 10 µs


def with_near_names(error: TopicsError, state: State, caller: Caller) -> TopicsError:
    """Return the error; about a missing topic, with names that are near and that the caller may use."""
    name = (error.detail or {}).get("topic")
    if error.code is not Code.TOPIC_NOT_FOUND or not isinstance(name, str) or not name:
        return error
    alike = islice(state.names.visible(caller.prefixes, prefix=name[:2]), LOOKED_AT)
    near = get_close_matches(name, [one for one in alike if abs(len(one) - len(name)) <= 2], n=3, cutoff=0.8)
    if not near:
        return error
    message = f"{error.message}; did you mean {' or '.join(near)}?"
    return TopicsError(error.code, message, detail={**(error.detail or {}), "near": near})
