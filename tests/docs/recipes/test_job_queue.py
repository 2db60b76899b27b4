"""docs/recipes/job-queue.md: jobs are repeated until they succeed, and set aside after five attempts."""

from __future__ import annotations

import pytest

from tests.docs.programs import WAIT_S
from tests.docs.recipes.conftest import Kitchen, Receiver, wait_for
from topics.client import Topics

WORKERS = ["webhooks.py", pytest.param("webhooks.mjs", marks=pytest.mark.torture)]


@pytest.mark.parametrize("worker", WORKERS)
def test_failed_job_is_repeated_and_then_set_aside(
    worker: str, kitchen: Kitchen, topics: Topics, receiver: Receiver
) -> None:
    programs = kitchen.programs("job-queue", {"1000 * 2": "5 * 2"})
    topics.put_topic("webhooks", type="queue")
    for path in ("/ok", "/second", "/never"):
        topics.append("webhooks", {"url": receiver.url(path), "body": {"order": 7}}, tag="shop-9")
    with programs.start(worker) as running:
        [dead] = wait_for(lambda: list(topics.read("webhooks.dead")) if _exists(topics, "webhooks.dead") else None)
        running.process.terminate()
        assert running.process.wait(WAIT_S) == 0
        lines = running.rest()
    assert dead.data["url"].endswith("/never")  # type: ignore[union-attr]
    assert (len(receiver.keys("/ok")), len(receiver.keys("/second")), len(receiver.keys("/never"))) == (1, 2, 5)
    assert len(set(receiver.keys("/never"))) == 1, "an attempt has the key of the one before"
    assert {"job 1: delivered", "job 2: delivered"} <= set(lines)
    assert sum(line.startswith("job 3: attempt ") for line in lines) == 5
    assert topics.topic("webhooks").count == 0
    assert topics.redrive("webhooks", match="shop-9").redriven == 1


@pytest.mark.parametrize("worker", ["webhooks.py", "webhooks.mjs"])
def test_job_of_a_killed_worker_is_done_by_another(
    worker: str, kitchen: Kitchen, topics: Topics, receiver: Receiver
) -> None:
    programs = kitchen.programs("job-queue", {"30_000": "2_000"})
    topics.put_topic("webhooks", type="queue")
    topics.append("webhooks", {"url": receiver.url("/slow"), "body": {"order": 7}})
    with programs.start(worker):
        wait_for(lambda: receiver.keys("/slow"))
    receiver.go_on.set()  # the first worker is dead, and its job is still leased
    kitchen.kill_server()
    with programs.start(worker) as second:
        assert second.line() == "job 1: delivered"
        wait_for(lambda: topics.topic("webhooks").count == 0)
    keys = receiver.keys("/slow")
    assert len(keys) >= 2
    assert len(set(keys)) == 1, "the receiver can drop a repetition"


def _exists(topics: Topics, name: str) -> bool:
    return any(row.topic == name for row in topics.topics(name))
