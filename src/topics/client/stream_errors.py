"""Errors that an event stream reports."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from topics.client.errors import Unavailable

ADVISORY = 429  # an `error` event that ends nothing


class _Problem(Struct):
    code: int
    error: str
    retry_after_ms: int | None = None


_decode = msgspec.json.Decoder(_Problem).decode


def raise_if_final(data: bytes) -> None:
    """Raise `Unavailable` for an `error` event, unless it is only advice: the client opens a new stream."""
    problem = _decode(data)
    if problem.code != ADVISORY:
        wait_s = None if problem.retry_after_ms is None else problem.retry_after_ms / 1000
        raise Unavailable(
            problem.error, code=f"stream_{problem.code}", status=problem.code, retryable=True, retry_after=wait_s
        )
