"""Objects of a replica: what is written is read back, and nothing else is taken for it."""

import pytest

from topics.storage.datadir import FORMAT_VERSION
from topics.storage.replica import objects
from topics.storage.replica.objects import Checkpoint, Damaged, FileRef, Head


def head(**other: object) -> Head:
    fields = {"replica": "r1", "number": 7, "term": 2, "kind": "bytes", "at_ms": 5, "instance": "i1"} | other
    return Head(**fields)  # type: ignore[arg-type]


def test_bytes_of_two_log_files_are_read_back():
    data = objects.encode(head(pieces=((3, 10, 4), (4, 0, 2)), upto=(4, 2)), b"abcdef")

    found = objects.decode(data, 7)

    assert found.head.upto == (4, 2)
    assert objects.pieces_of(found) == [(3, 10, b"abcd"), (4, 0, b"ef")]


def test_checkpoint_is_read_back():
    checkpoint = Checkpoint(
        snapshot=9, since=5, clean=True, files=[FileRef("snapshots/9.snap", "files/ab", 3, 1 << 63)]
    )

    found = objects.decode(objects.encode(head(kind="checkpoint"), objects.encode_checkpoint(checkpoint)), 7)

    assert found.checkpoint == checkpoint


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_changed_byte_is_detected(at: int):
    data = bytearray(objects.encode(head(), b"abc"))
    data[at] ^= 1

    with pytest.raises(Damaged):
        objects.decode(bytes(data), 7)


def test_object_under_another_number_is_refused():
    with pytest.raises(Damaged, match="has the bytes of object 7"):
        objects.decode(objects.encode(head()), 8)


def test_object_of_newer_format_names_the_way_out():
    data = bytearray(objects.encode(head()))
    data[8] = 9

    with pytest.raises(Damaged, match="use a newer version of topics"):
        objects.decode(bytes(data), 7)


def test_object_with_data_of_a_newer_format_is_refused():
    assert objects.decode(objects.encode(head()), 7).head.stored == 1, "objects of the first versions do not say it"
    assert objects.decode(objects.encode(head(stored=FORMAT_VERSION)), 7)

    with pytest.raises(Damaged, match="use the version of topics that wrote it"):
        objects.decode(objects.encode(head(stored=FORMAT_VERSION + 1)), 7)


def test_names_sort_as_numbers_and_other_names_have_none():
    assert objects.log_name(9) < objects.log_name(10)
    assert objects.number_of(objects.log_name(10)) == 10
    assert objects.number_of("log/10") is None
    assert objects.number_of("files/00000000000000000010") is None


def test_foreign_identity_is_refused():
    assert objects.decode_identity(objects.encode_identity("abc")).id == "abc"
    with pytest.raises(Damaged, match="choose another prefix"):
        objects.decode_identity(b"# a readme")
