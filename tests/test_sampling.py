"""The samples of the long tests."""

import itertools

import pytest

from tests import sampling


def test_round_has_each_name_once_in_each_position() -> None:
    names = list("abcdefg")
    sample = sampling.parts(names, 3, rounds=2, seed=1)
    assert list(sample) == ["round0", "round1"]
    for workloads in sample.values():
        assert [sorted(position) for position in zip(*workloads, strict=True)] == [names] * 3
    assert sample == sampling.parts(names, 3, rounds=2, seed=1)
    assert sample != sampling.parts(names, 3, rounds=2, seed=2)


def test_parts_of_everything_have_each_workload_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "EVERYTHING", True)
    found = sampling.parts("abc", 3, rounds=2)
    assert len(found) == 9
    assert sorted(itertools.chain(*found.values())) == sorted(itertools.product("abc", repeat=3))
    assert sampling.amount(1, 2) == 2
