"""Marks that the file of a segment may lack."""

import numpy as np
import pytest

from topics.storage.segments.marks import FEW, UnsavedMarks, marked_positions


@pytest.mark.parametrize("marked", [3, FEW + 1])
def test_marks_are_unsaved_until_the_file_has_them(marked: int):
    unsaved, marks = UnsavedMarks(100, [99]), bytearray(100)
    unsaved.add(range(marked))
    unsaved.add_taken(60, np.array([0, 1], np.uint8))
    marks[:marked], marks[61], marks[80], marks[99] = b"\1" * marked, 2, 1, 1
    packed = unsaved.pack(marks)
    assert marked_positions(packed).tolist() == [*range(marked), 61, 99]
    unsaved.add([80])
    assert unsaved.remove(packed), "one mark was made later"
    assert marked_positions(unsaved.pack(marks)).tolist() == [80]
    assert not unsaved.remove(unsaved.pack(marks))


def test_marks_that_the_file_has_are_left():
    marks = bytearray([1, 0, 2, 1])
    assert UnsavedMarks(4, [0, 2]).left_out_of(marks) == bytearray([0, 0, 0, 1])
    assert marks == bytearray([1, 0, 2, 1])
