"""docs/recipes/rate-limit.md: a producer keeps its rate, and waits while the topic is full."""

from __future__ import annotations

from tests.docs.recipes.conftest import Kitchen, wait_for
from topics.client import Topics

RATE = 40


def test_producer_keeps_its_rate_and_waits_for_room(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("rate-limit", {"cap_records=1000": "cap_records=20"})
    with programs.start("producer.py", str(RATE)) as producer:
        for number in range(60):
            producer.type(f"line {number}")
        wait_for(lambda: topics.topic("lines").count == 20 if _exists(topics) else None)
        times = [item.ts for item in topics.read("lines")]  # type: ignore[union-attr]
        with programs.start("consumer.py") as consumer:
            assert [consumer.line() for _ in range(60)] == [f"line {number}" for number in range(60)]
            assert [producer.line() for _ in range(60)] == [f"line {n} is record {n}" for n in range(1, 61)]
    burst = RATE / 10
    for index, at_ms in enumerate(times):
        assert index + 1 <= burst + (at_ms - times[0] + 50) / 1000 * RATE + 1, "too fast"


def _exists(topics: Topics) -> bool:
    return any(True for _ in topics.topics("lines"))
