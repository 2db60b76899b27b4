"""docs/recipes/cache-invalidation.md: a cache forgets what was changed, and everything if it missed a change."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.docs.programs import Program
from tests.docs.recipes.conftest import Kitchen, wait_for
from topics.client import NewRecord, Topics

CACHES = ["prices.py", pytest.param("prices.mjs", marks=pytest.mark.torture)]


def price(cache: Program, key: str) -> str:
    """Ask a cache. Lines that report a cleared cache come in between."""
    cache.type(key)
    while (line := cache.line()).startswith("cleared"):
        pass
    return line


def change(kitchen: Kitchen, topics: Topics, value: str) -> None:
    """Do what set_price.py does."""
    _store(kitchen.here, "V60", value)
    topics.append("price-changes", "V60")


@pytest.mark.parametrize("program", CACHES)
def test_cache_keeps_a_value_until_it_is_changed(program: str, kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("cache-invalidation")
    programs.run("set_price.py", "V60", "12.99")
    with programs.start(program) as cache:
        assert price(cache, "V60") == "12.99"
        _store(kitchen.here, "V60", "1.00")
        assert price(cache, "V60") == "12.99", "the value comes from the cache"
        change(kitchen, topics, "11.99")
        wait_for(lambda: price(cache, "V60") == "11.99")
        kitchen.kill_server()
        change(kitchen, topics, "10.99")
        wait_for(lambda: price(cache, "V60") == "10.99")


@pytest.mark.parametrize("program", CACHES)
def test_cache_is_cleared_if_changes_were_lost(program: str, kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("cache-invalidation", {"10_000": "10"})
    _store(kitchen.here, "V60", "12.99")
    with programs.start(program) as cache:
        assert price(cache, "V60") == "12.99"
        cache.process.send_signal(signal.SIGSTOP)
        change(kitchen, topics, "11.99")
        for _ in range(3):  # the change of V60 is evicted before the stopped process can read it
            topics.append_many("price-changes", [NewRecord(data=f"other-{n}") for n in range(1000)])
        kitchen.kill_server()  # the connection of the stopped process holds none of these records
        cache.process.send_signal(signal.SIGCONT)
        while not cache.line().startswith("cleared: changes "):
            pass
        assert price(cache, "V60") == "11.99"
        _store(kitchen.here, "V60", "10.99")
        topics.drop_topic("price-changes")
        topics.append("price-changes", "another")  # the topic is a new one, with the same seqs
        while not cache.line().startswith("cleared: changes "):
            pass
        assert price(cache, "V60") == "10.99"


def _store(directory: Path, key: str, value: str) -> None:
    (directory / "prices").mkdir(exist_ok=True)
    (directory / "prices" / key).write_text(value)
