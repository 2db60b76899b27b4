"""How long to wait before the next attempt."""

from __future__ import annotations

import random
import time

from topics.client.errors import TopicsError

FIRST_S = 0.1
LONGEST_S = 10.0


class Backoff:
    """Waits that double up to ten seconds, with jitter, and are never shorter than the server asks."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again: the last attempt succeeded."""
        self.attempts = 0
        self._began_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        """The time since the first attempt."""
        return time.monotonic() - self._began_s

    def next_s(self, error: TopicsError | None = None) -> float:
        """Return the next wait in seconds."""
        most = min(FIRST_S * 2.0 ** min(self.attempts, 16), LONGEST_S)
        self.attempts += 1
        asked = error.retry_after if error is not None and error.retry_after is not None else 0.0
        return max(asked, most / 2) + random.random() * most / 2
