"""Marks of records: one byte each, in columns because a delete may take millions of records. Pure.

Marks that a segment's file may lack are packed into five bytes each: position u32 LE, mark u8.
"""

from __future__ import annotations

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
