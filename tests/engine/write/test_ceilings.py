"""The ceiling of a topic that acknowledges without a sync: no seq above the synced one is acknowledged."""

import pytest

from tests.engine.harness import FakeLog, open_engine, record, write
from tests.engine.write.commit_bench import DISK, Bench
from tests.simulated.harness import SimServer
from topics.engine.state.topic import FIRST_CEILING, NO_CEILING
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch


def test_a_write_above_the_synced_ceiling_waits_for_it():
    bench = Bench(a=DISK)
    ticket = bench.engine.append("a", write())
    bench.engine.flush()
    topic = bench.engine.topic("a")
    assert (ticket.done, topic.head) == (topic.ceiling >= 1, 1 if topic.ceiling >= 1 else 0)
    bench.log.finish()
    assert ticket.value().first <= topic.ceiling


class SlowLog(FakeLog):
    """Its `after_sync` comes with the sync, not before."""

    def __init__(self) -> None:
        super().__init__()
        self.after = []

    def after_sync(self, done) -> None:
        self.after.append(done)

    def finish(self) -> None:
        super().finish()
        after, self.after = self.after, []
        for done in after:
            done()


def test_no_seq_above_the_synced_ceiling_is_ever_acknowledged():
    bench = Bench(a=DISK)
    bench.log = bench.engine.commits.wal = SlowLog()
    topic = bench.engine.topic("a")
    for turn in range(60):
        tickets = [bench.engine.append("a", write(*[record()] * 40)) for _ in range(4)]
        bench.engine.flush()
        assert all(ticket.result.last <= topic.ceiling for ticket in tickets if ticket.done)
        if turn % 7 == 6:
            bench.log.finish()
    bench.log.finish()
    assert topic.head == 60 * 4 * 40


def test_fast_writes_raise_the_ceiling_further_and_stop_waiting():
    bench = Bench(a=DISK)
    bench.log = bench.engine.commits.wal = SlowLog()
    waited = []
    for _ in range(40):
        for _ in range(10):  # turns in the time of one sync
            tickets = [bench.engine.append("a", write(*[record()] * 100)) for _ in range(16)]
            bench.engine.flush()
        waited.append(not tickets[-1].done)
        bench.log.finish()
    assert waited[0]
    assert not any(waited[10:])


class SlowDisk(SlowLog):
    """Its syncs take 50 ms, as it reports."""

    sync_ms = 50


def test_busy_topic_on_a_slow_disk_never_waits_for_its_ceiling():
    bench = Bench()
    bench.log = bench.engine.commits.wal = SlowDisk()
    created = bench.engine.put_topic("a", ConfigPatch(durability="disk"))
    bench.engine.flush()
    bench.log.finish()
    topic = created.value().topic
    for _ in range(20):
        after, bench.log.after = bench.log.after, []  # raised before this sync began
        for _ in range(10):
            ticket = bench.engine.append("a", write(*[record()] * 500))  # 100 records per millisecond
            bench.engine.flush()
            assert ticket.done, f"seq {topic.next_seq} waits for a ceiling above {topic.ceiling}"
        for done in after:
            done()
    assert topic.head == 100_000


def test_first_write_after_a_start_raises_a_ceiling_that_is_near():
    bench = Bench(a=DISK)
    bench.log = bench.engine.commits.wal = SlowDisk()
    topic = bench.engine.topic("a")
    assert bench.engine.append("a", write())
    bench.engine.flush()
    assert (topic.ceiling, topic.ceiling_staged) == (FIRST_CEILING, 20_002)


def test_a_first_write_beyond_the_first_ceiling_waits_for_its_sync():
    bench = Bench()
    small = bench.engine.append("a", write(*[record()] * FIRST_CEILING, config=DISK))
    large = bench.engine.append("b", write(*[record()] * (FIRST_CEILING + 1), config=DISK))
    bench.engine.flush()
    assert (small.done, large.done) == (True, False)
    bench.log.finish()
    assert large.value().last == FIRST_CEILING + 1


def test_a_ceiling_that_the_log_refused_is_raised_again():
    bench = Bench(a=DISK)
    topic = bench.engine.topic("a")
    bench.engine.append("a", write())
    bench.turn()
    staged = topic.ceiling_staged
    bench.log.write_fails = True
    bench.engine.append("a", write(*[record()] * 5000))
    bench.turn()
    assert topic.ceiling_staged == staged


def test_appends_share_an_entry_past_the_first_ceiling_without_a_log():
    engine = open_engine()
    for _ in range(11):
        engine.append("a", write(*[record()] * 1000))
        engine.flush()
    tickets = [engine.append("a", write()) for _ in range(32)]
    engine.flush()
    assert engine.commits.batch_writes == 32
    assert [ticket for ticket in tickets if ticket.followers is not None] == tickets[:1]
    assert [ticket.value().first for ticket in tickets] == list(range(11_001, 11_033))


@pytest.mark.parametrize("logged", [False, True])
def test_topic_that_a_router_creates_has_a_ceiling_only_with_a_log(logged: bool):
    engine = SimServer.start().engine if logged else open_engine()
    ticket = engine.routers.put("r", RouterRequest(source="a", dest="b"))
    engine.flush()
    ticket.value()
    ceiling = FIRST_CEILING if logged else NO_CEILING
    assert [(one.ceiling, one.ceiling_staged) for one in engine.topics.values()] == [(ceiling, ceiling)] * 2
