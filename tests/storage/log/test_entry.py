"""Log entries: every kind comes back as it went in; what is not one is `Corrupt`, never a guess."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import Corrupt, UnknownFormat
from topics.model.topic import TopicConfig
from topics.storage.log import entry as log
from topics.storage.log import frame

U64 = 2**64 - 1


def reread(entry):
    blob = log.encode(entry)
    found, end = frame.decode(memoryview(blob), 0)
    assert end == len(blob)
    return found.head, log.decode(found, path="wal", at=0)


@pytest.mark.parametrize(
    "entry",
    [
        log.Create(3, "chat:general", 1_748_450_001_000, TopicConfig(ttl_ms=U64, priority=-5, dead_letter="d"), 17),
        log.Configure(3, TopicConfig(durability="fsync", durable=True), 18),
        log.Drop(3),
        log.Delete(3, U64, None, "", 19),
        log.Delete(3, 5, "Glob", "é:", 19),
        log.Delete(3, 0, None, "", 19, [1, 2, U64]),
        log.Ceiling(3, U64),
    ],
)
def test_a_change_comes_back_as_it_went_in(entry):
    head, again = reread(entry)
    assert again == entry
    assert (head.kind, head.topic_id, head.first, head.count) == (entry.kind, 3, 0, 0)


texts = st.text(max_size=8)
appends = st.integers(1, 6).flatmap(
    lambda n: st.builds(
        log.Append,
        st.integers(1, 2**32 - 1),
        st.integers(1, 2**63),
        st.integers(0, 2**63),
        st.lists(st.integers(1, 2**20), min_size=n, max_size=n),
        st.binary(max_size=50),
        st.none() | st.lists(st.none() | texts, min_size=n, max_size=n),
        st.none() | texts | st.lists(st.none() | texts, min_size=n, max_size=n),
        st.none() | st.lists(st.integers(0, 2**14), min_size=n, max_size=n),
        st.none() | texts,
        st.none() | st.dictionaries(st.integers(0, n - 1), st.binary(max_size=9), min_size=1),
    )
)


@given(appends)
def test_an_append_comes_back_as_it_went_in_and_its_frame_tells_its_seqs(entry):
    head, again = reread(entry)
    assert again == entry
    assert (head.kind, head.topic_id, head.first, head.count) == (
        log.APPEND,
        entry.topic_id,
        entry.first,
        len(entry.sizes),
    )
    assert entry.last == entry.first + len(entry.sizes) - 1


def test_the_numbers_of_the_kinds_are_for_ever():
    assert (log.CREATE, log.CONFIGURE, log.DROP, log.APPEND, log.DELETE, log.CEILING) == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize(
    ("kind", "body"), [(log.DROP, b"\xc1"), (log.APPEND, b"\x01"), (log.APPEND, b"\x09\0\0\0\x90")]
)
def test_a_whole_frame_that_is_no_entry_names_its_place(kind, body):
    found, _ = frame.decode(memoryview(frame.encode(kind, 1, 1, 1, body)), 0)
    with pytest.raises(Corrupt) as caught:
        log.decode(found, path="wal/7", at=123)
    assert (caught.value.path, caught.value.offset) == ("wal/7", 123)


def test_unknown_kind_is_no_damage():
    found, _ = frame.decode(memoryview(frame.encode(60, 1, 1, 1, b"")), 0)
    with pytest.raises(UnknownFormat, match="wal/7 at byte 123 has a log entry of kind 60"):
        log.decode(found, path="wal/7", at=123)


def test_a_later_version_may_add_fields_at_the_end():
    """Entries are arrays: one that was written with fewer fields still reads."""
    body = msgspec.msgpack.encode([3, 5, None, "", 19])
    found, _ = frame.decode(memoryview(frame.encode(log.DELETE, 3, 0, 0, body)), 0)
    assert log.decode(found, path="wal", at=0) == log.Delete(3, 5, None, "", 19)
