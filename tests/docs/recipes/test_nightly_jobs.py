"""docs/recipes/nightly-jobs.md: each customer gets its steps once and in order, also if a worker is killed."""

from __future__ import annotations

from tests.docs.programs import WAIT_S
from tests.docs.recipes.conftest import Kitchen, wait_for
from topics.client import Topics


def test_steps_of_a_customer_run_in_order_after_a_kill(kitchen: Kitchen, topics: Topics) -> None:
    short = {"concurrency=8": "concurrency=8, lease_ms=1000", '"nights")\n': '"nights", lease_ms=1000)\n'}
    programs = kitchen.programs("nightly-jobs", short)
    with programs.start("statements.py"):
        wait_for(lambda: any(row.schedule == "nightly" for row in topics.schedules()))
        topics.run_schedule("nightly")
    kitchen.kill_server()
    with programs.start("statements.py") as running:
        wait_for(lambda: _are_done(topics, nights=1))
        topics.run_schedule("nightly")
        wait_for(lambda: _are_done(topics, nights=2))
        running.process.terminate()
        assert running.process.wait(WAIT_S) == 0
        lines = running.rest()
    for customer in ("ada", "bob", "cyd"):
        steps = [line.removeprefix(f"{customer}: ") for line in lines if line.startswith(f"{customer}: ")]
        assert steps[-3:] == ["close", "write", "send"], lines
    assert topics.schedule("nightly").failures_total == 0


def _are_done(topics: Topics, *, nights: int) -> bool:
    """Whether all steps of so many nights were appended, each once, and none is left."""
    state = topics.topic("statements")
    assert state.head_seq <= 9 * nights, "a step is there twice"
    return state.head_seq == 9 * nights and state.count == 0 and topics.topic("nights").count == 0
