"""The errors of a lake, one class per remedy."""

from __future__ import annotations


class LakeError(RuntimeError):
    """The lake cannot be used as requested."""


class NoLake(LakeError):
    """There is no lake at this place."""


class Conflict(LakeError):
    """Another writer changed the base of this change: load the newest state and build the change again."""


class Moved(Conflict):
    """Another run has committed to the same table: this one cannot continue from its position."""


class NoTable(LakeError):
    """The place of an output table holds something else."""


class Damaged(LakeError):
    """A file is missing, or its content is not what was written."""
