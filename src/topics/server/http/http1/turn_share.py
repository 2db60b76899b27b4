"""The share of one turn of the event loop that one connection may use. Pure.

A single read can hold thousands of requests, or of chunks. A connection parses and begins a bounded number of them in
one turn, and begins none after `TURN_NS`. The rest waits until the other connections have had their turn.
"""

from collections.abc import Callable

MAX_PIECES = 2048  # pieces of chunked bodies that are parsed in one turn
TURN_NS = 2_000_000  # work on the requests of one connection in one turn


class TurnShare:
    """What a connection may still do in this turn."""

    __slots__ = (
        "_clock_ns",
        "_heads_end",
        "_max_requests",
        "_pieces_end",
        "_requests_left",
        "ends_ns",
        "heads",
    )

    def __init__(self, max_requests: int, clock_ns: Callable[[], int]) -> None:
        self._max_requests = max_requests
        self._clock_ns = clock_ns
        self.ends_ns = 0  # when the share is used up; 0 in a new turn, while no request was begun in it
        self._requests_left = 0
        self.heads = 0  # parsed since the connection was opened
        self._heads_end = self._pieces_end = 0

    def take_request(self) -> bool:
        """Count a request that is begun; return False if the share is used up."""
        if not self.ends_ns:
            self.ends_ns = self._clock_ns() + TURN_NS
            self._requests_left = self._max_requests
        elif self._requests_left <= 0 or self._clock_ns() > self.ends_ns:
            return False
        self._requests_left -= 1
        return True

    def allow_parsing(self, pieces: int) -> None:
        """Allow a turn's share of heads and pieces after the `pieces` that were parsed before."""
        self._heads_end = self.heads + self._max_requests
        self._pieces_end = pieces + MAX_PIECES

    def may_parse(self, pieces: int) -> bool:
        """Return whether more may be parsed after the `pieces` that were parsed before."""
        return self.heads < self._heads_end and pieces < self._pieces_end
