"""Numbers with a noun."""

from topics.plurals import counted


def test_noun_has_its_plural_except_for_one():
    assert [counted(number, "seq") for number in (0, 1, 2, 2000)] == ["0 seqs", "1 seq", "2 seqs", "2,000 seqs"]
    assert [counted(number, "file is left", "files are left") for number in (1, 3)] == [
        "1 file is left",
        "3 files are left",
    ]
