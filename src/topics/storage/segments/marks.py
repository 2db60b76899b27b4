"""Marks of records: one byte each, in columns because a delete may take millions of records. Pure.

Marks that a segment's file may lack are packed into five bytes each: position u32 LE, mark u8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.intp]

LIVE, DELETED, LOST = 0, 1, 2
FEW = 32  # positions that are marked one by one: up to here a loop takes less time than numpy

_PACKED = np.dtype([("at", "<u4"), ("mark", "u1")])


def pack_marks(marks: bytes | bytearray, positions: Positions) -> bytes:
    packed = np.empty(len(positions), _PACKED)
    packed["at"] = positions
    packed["mark"] = np.frombuffer(marks, np.uint8)[positions]
    return packed.tobytes()


def marked_positions(packed: bytes) -> Positions:
    return np.frombuffer(packed, _PACKED)["at"].astype(np.intp)


def put_marks(marks: bytearray, packed: bytes) -> None:
    found = np.frombuffer(packed, _PACKED)
    np.frombuffer(marks, np.uint8)[found["at"]] = found["mark"]


class UnsavedMarks:
    """Which records of a segment have marks that its file may lack."""

    __slots__ = ("_column",)

    def __init__(self, count: int, positions: Sequence[int] | Positions = ()) -> None:
        self._column = bytearray(count)  # a byte per record: 1 if the file may lack its mark
        self.add(positions)

    def add(self, positions: Sequence[int] | Positions) -> None:
        if len(positions) > FEW:
            np.frombuffer(self._column, np.uint8)[np.asarray(positions, np.intp)] = 1
        else:
            for at in positions:
                self._column[at] = 1

    def add_taken(self, low: int, taken: npt.NDArray[np.uint8]) -> None:
        """Add the positions `low + i` for which `taken[i]` is 1."""
        np.frombuffer(self._column, np.uint8)[low : low + len(taken)] |= taken

    def pack(self, marks: bytearray) -> bytes:
        """Return those of the marks that the file may lack."""
        return pack_marks(marks, np.flatnonzero(np.frombuffer(self._column, np.uint8)))

    def left_out_of(self, marks: bytearray) -> bytearray:
        """Return the marks without those that the file may lack."""
        saved = bytearray(marks)
        np.frombuffer(saved, np.uint8)[np.frombuffer(self._column, np.uint8) > 0] = LIVE
        return saved

    def remove(self, packed: bytes) -> bool:
        """Remove marks that the file has now. Return whether it may lack others."""
        np.frombuffer(self._column, np.uint8)[marked_positions(packed)] = 0
        return 1 in self._column
