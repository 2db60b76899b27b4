"""Clients that wait for jobs of one queue, on a manual loop."""

from msgspec import Raw

from tests.live.manual import manual_app
from topics.engine.queue.verbs import Claimed, Want
from topics.engine.write.commit import Ticket
from topics.errors import TopicsError
from topics.model.records import NewRecord, WriteRequest
from topics.model.topic import ConfigPatch


class Worker:
    """Waits for one job at a time, and keeps waiting."""

    fresh = False

    def __init__(self, node: str) -> None:
        self.node = node
        self.jobs: list[int] = []

    def want(self) -> Want | None:
        return Want(node=self.node, max=1, lease_ms=1000)

    def assign(self, claimed: Claimed, ticket: Ticket | None) -> bool:
        self.jobs += [job.seq for job in claimed.jobs]
        return True

    def refuse(self, error: TopicsError) -> bool:
        raise AssertionError(error)

    def queue_deleted(self) -> None:
        raise AssertionError("nothing deletes the queue")


def test_worker_that_leaves_twice_does_not_disturb_later_ones() -> None:
    """A claim leaves when it is answered, and again when its client disconnects before the answer is written."""
    app, loop = manual_app()
    engine, waiters = app.services.engine, app.services.job_waiters
    engine.put_topic("q", ConfigPatch(type="queue"))
    engine.append("q", WriteRequest([NewRecord(data=Raw(b"1"))]))
    engine.flush()
    topic = engine.topic("q")
    [claimed], _ = engine.queues.claim(topic, [Want(node="busy", max=1, lease_ms=1000)])
    engine.flush()
    [held] = claimed.jobs

    first, second = Worker("first"), Worker("second")
    before = waiters.join(topic, first)
    before.leave(first)
    waiters.join(topic, second)
    before.leave(first)
    loop.turn()
    assert second.jobs == []

    engine.queues.nack(topic, "busy", [held.seq], None, delay_ms=0)
    engine.flush()
    loop.turn()
    assert second.jobs == [held.seq]
