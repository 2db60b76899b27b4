"""Listeners of a topic: each is called, and a late cancellation removes no other."""

import random

from tests.engine.harness import open_engine, write
from topics.engine.state.topic import Topic


def test_late_cancellation_leaves_other_listeners() -> None:
    engine = open_engine()
    engine.append("a", write())
    engine.flush()
    topic, rng = engine.topic("a"), random.Random(7)
    cancels, expected, woken = [], {}, set()

    class Poll:
        def __init__(self, number: int) -> None:
            self.number = number

        def wake(self, _: Topic) -> None:
            woken.add(self.number)
            expected[self.number]()

    for number in range(2_000):
        cancel = engine.listen(topic, Poll(number).wake)
        expected[number] = cancel
        cancels.append((number, cancel))
        if rng.random() < 0.3:
            woken.clear()
            engine.staging.grew(topic)
            engine.staging.notify()
            assert woken == expected.keys()
            expected.clear()
        for _ in range(rng.randrange(3)):
            late, cancel = cancels.pop(rng.randrange(len(cancels))) if cancels else (None, None)
            if cancel is not None:
                cancel()
                expected.pop(late, None)
