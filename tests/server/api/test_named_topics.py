"""Which topics a scrape names, and what it looks at for that."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import SimServer
from topics.engine.steps import run_all
from topics.server.access.audit import Audit
from topics.server.api import named_topics
from topics.server.api.named_topics import KEEPS_MS, SUMMED, choose

ALWAYS = ("pay*", "t3")
Named = tuple[list[str], int, dict[str, float]]


@pytest.fixture(autouse=True)
def few_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_topics, "SPARE", 2)


def services_of(server: SimServer, always: tuple[str, ...] = ()) -> Any:
    runtime = SimpleNamespace(settings=SimpleNamespace(metrics_topics=always))
    return SimpleNamespace(engine=server.engine, runtime=runtime, named_topics={})


def write(server: SimServer, name: str) -> None:
    server.clock.advance(ms=1)
    server.append(name, "1", cap_records=3)


def scrape(services: Any, limit: int = 3, prefixes: tuple[str, ...] = ()) -> Named:
    chosen, left_out, others = run_all(choose(services, prefixes, limit))
    return [topic.name for topic in chosen], left_out, others


def expected(services: Any, before: list[str], limit: int, prefixes: tuple[str, ...]) -> Named:
    """Return the same by looking at every topic."""
    topics = [topic for topic in services.engine.state.by_name.values() if topic.name.startswith(prefixes or "")]
    ranked = sorted(
        topics,
        key=lambda topic: (
            topic.name.startswith("pay") or topic.name == "t3",
            (topic.last_write_ts or 0) + KEEPS_MS * (topic.name in before),
        ),
        reverse=True,
    )
    rest = ranked[limit:]
    others = {name: sum(value(topic) or 0 for topic in rest) for name, _, value in SUMMED}
    return sorted(topic.name for topic in ranked[:limit]), len(rest), others


@pytest.mark.parametrize("seed", range(8))
def test_scrapes_name_the_same_topics_as_a_look_at_all_of_them(seed: int) -> None:
    chance = random.Random(seed)
    server = SimServer.start(SimDisk(seed=seed))
    services, before = services_of(server, ALWAYS), dict[tuple[str, ...], list[str]]()
    for _ in range(150):
        name = f"{chance.choice(['t', 'other', 'pay'])}{chance.randrange(9)}"
        act = chance.random()
        if act < 0.6:
            write(server, name)
        elif act < 0.75 and name in server.engine.topics:
            server.drop(name)
        elif act < 0.8:
            server.clock.advance(ms=KEEPS_MS)
        else:
            prefixes = chance.choice([(), (), ("t",), ("t3\0", "pay")])
            covered = tuple(one.removesuffix("\0") for one in prefixes)
            limit = chance.choice([3, 3, 3, 0, 7])
            wanted = expected(services, before.get(prefixes, []), limit, covered)
            found = scrape(services, limit, prefixes)
            assert found == wanted
            before[prefixes] = found[0]


def test_only_the_first_scrape_looks_at_every_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SimServer.start(SimDisk(seed=7))
    for number in range(20):
        write(server, f"t{number}")
    services = services_of(server)
    assert scrape(services)[0] == ["t17", "t18", "t19"]

    monkeypatch.setattr(named_topics, "_look_at_all", lambda *_: pytest.fail("looked at all"))
    write(server, "t4")
    server.drop("t18")
    server.drop("t19")
    services.named_topics.clear()
    names, left_out, others = scrape(services)
    assert (names, left_out) == (["t16", "t17", "t4"], 15)
    assert others["topics_topic_records_live"] == 15


def test_topic_written_during_the_first_scrape_is_among_the_last_written() -> None:
    server = SimServer.start(SimDisk(seed=7))
    for number in range(600):  # three pages
        write(server, f"t{number:03}")
    services = services_of(server)
    steps = choose(services, (), 3)
    next(steps)
    next(steps)
    write(server, "t000")  # its page has been looked at
    run_all(steps)
    services.named_topics.clear()
    assert scrape(services)[0] == ["t000", "t598", "t599"]


def test_audit_topic_takes_no_place_and_no_part_of_the_sums() -> None:
    server = SimServer.start(SimDisk(seed=7))
    services, audit = services_of(server), Audit(server.engine, enabled=True)
    for number in range(5):
        write(server, f"t{number}")
    before = scrape(services, 2)
    assert before[:2] == (["t3", "t4"], 3)

    for _ in range(5):  # more than the spare places
        server.clock.advance(ms=1)
        audit.note("drop topic", "x", "me")
    server.engine.flush()
    services.named_topics.clear()
    assert scrape(services, 2) == before


def test_new_topic_is_named_after_a_change_is_audited() -> None:
    server = SimServer.start(SimDisk(seed=7))
    services, audit = services_of(server), Audit(server.engine, enabled=True)
    write(server, "t0")
    write(server, "t1")
    assert scrape(services)[0] == ["t0", "t1"]

    server.put("t2", type="queue")
    audit.note("create topic", "t2", "me")
    server.engine.flush()
    names, left_out, _ = scrape(services)
    assert (names, left_out) == (["t0", "t1", "t2"], 0)
