"""Names in order: the same as a sorted list, without a look at other names."""

import random
from itertools import islice

import pytest

from topics.engine.state import name_index
from topics.engine.state.name_index import NameIndex, outermost


class Counted(str):
    """A name that counts how often names are tested for a prefix."""

    tested = 0

    def startswith(self, *arguments: object) -> bool:  # type: ignore[override]
        Counted.tested += 1
        return super().startswith(*arguments)  # type: ignore[arg-type]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_index, "CHUNK_NAMES", 4)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", range(20))
def test_names_come_out_like_those_of_a_sorted_list(seed: int) -> None:
    dice = random.Random(seed)
    names: set[str] = set()
    index = NameIndex()
    for _ in range(400):
        name = "".join(dice.choice("ab.") for _ in range(dice.randint(1, 5)))
        if name in names and dice.random() < 0.6:
            names.remove(name)
            index.remove(name)
        elif name not in names:
            names.add(name)
            index.add(name)
        prefix, after = ("".join(dice.choice("ab.") for _ in range(dice.randint(0, 2))) for _ in range(2))
        expected = [one for one in sorted(names) if one.startswith(prefix) and one > after]
        assert list(index.starting_with(prefix, after=after)) == expected
        allowed = tuple("".join(dice.choice("ab.") for _ in range(dice.randint(0, 2))) for _ in range(3))
        visible = [one for one in expected if one.startswith(allowed)]
        assert list(index.visible(allowed, prefix=prefix, after=after)) == visible
    assert list(index) == sorted(names)
    assert len(index) == len(names)
    index.rebuild(names)
    assert list(index) == sorted(names)


def test_a_page_looks_at_its_own_names_only() -> None:
    index = NameIndex(Counted(f"n{at:06}") for at in range(20_000))
    Counted.tested = 0
    assert len(list(islice(index.starting_with("n01", after="n010500"), 100))) == 100
    assert Counted.tested <= 100
    assert list(index.starting_with("nothing")) == []
    assert Counted.tested <= 101


def test_a_prefix_within_another_one_is_left_out() -> None:
    assert outermost(["b", "ab", "a", "b.c", "c"]) == ["a", "b", "c"]
