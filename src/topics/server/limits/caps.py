"""Caps on how much is open at once, and the error that names the cap. Pure."""

from topics.errors import Code, TopicsError

RETRY_AFTER_MS = 1000


def throttled(limit: str, most: int) -> TopicsError:
    """Return the 429 that names a setting and its value. What is open ends by itself, so a retry can help."""
    return TopicsError(
        Code.THROTTLED,
        f"{limit} ({most}) is reached; close some, or try again later",
        detail={"limit": limit, "max": most},
        retry_after_ms=RETRY_AFTER_MS,
    )


def check_room(limit: str, used: int, most: int) -> None:
    """Raise `throttled` if one more would exceed the cap; a cap of 0 means unlimited."""
    if most and used >= most:
        raise throttled(limit, most)
