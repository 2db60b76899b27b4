"""Numbers with a noun, for messages."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return `1 record` or `2,000 records`. `plural` is for words that do not only get an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
