"""What can go wrong with a lake, by what whoever met it can do about it."""

from __future__ import annotations


class LakeError(RuntimeError):
    """A lake that cannot be used as asked."""


class NoLake(LakeError):
    """There is none at this place."""


class Conflict(LakeError):
    """Somebody else changed what this change was made from: look again, and make it anew."""


class Damaged(LakeError):
    """A file that is missing, or does not hold what was written to it."""
