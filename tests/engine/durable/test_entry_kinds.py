"""The table of log entries: every kind has a row, a number of its own and a decoder."""

import importlib
import pkgutil

import pytest
from msgspec import Struct

import topics.engine
import topics.storage
from topics.engine.durable import entry_kinds
from topics.engine.queue.dead_letters import Moved
from topics.storage.log import entry as log
from topics.storage.log import frame, walfile


def defined_kinds() -> dict[str, int]:
    """Return the numbers of all classes in the package that declare the kind of a log entry, by name."""
    for package in (topics.engine, topics.storage):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    classes, found = [Struct], {}
    while classes:
        one = classes.pop()
        classes += one.__subclasses__()
        if isinstance(kind := vars(one).get("kind"), int) and one.__module__.startswith("topics."):
            found[f"{one.__module__}.{one.__qualname__}"] = kind
    return found


def test_every_kind_has_a_row() -> None:
    rows = {f"{kind.entry.__module__}.{kind.entry.__qualname__}": kind.entry.kind for kind in entry_kinds.KINDS}
    assert rows == defined_kinds()


def test_numbers_are_unique_and_leave_the_highest_bit_free() -> None:
    numbers = [kind.entry.kind for kind in entry_kinds.KINDS]
    assert len({*numbers, walfile.FOLLOWS}) == len(numbers) + 1
    assert all(0 < number < 64 for number in numbers)  # see `walfile._plausible`
    assert max(numbers) < frame.MORE


@pytest.mark.parametrize("kind", entry_kinds.KINDS, ids=lambda kind: kind.entry.__name__)
def test_every_kind_can_be_decoded(kind: entry_kinds.Kind) -> None:
    body = b"" if kind.entry is log.Append else b"\x90"
    found = frame.Frame(frame.Head(kind.entry.kind, 1, 1, 1), memoryview(body))
    with pytest.raises(log.Corrupt, match="cannot be decoded"):
        log.decode(found, path="", at=0)


def test_a_move_touches_both_topics() -> None:
    append = log.Append(7, 1, 0, [1], b"x")
    assert entry_kinds.touched_by(Moved(3, [1], 0, dead=True, append=append)) == {3, 7}
    assert entry_kinds.touched_by(Moved(3, [1], 0, dead=True)) == {3}
