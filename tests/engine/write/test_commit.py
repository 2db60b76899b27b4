"""Group commit: one write a turn, effect in order, and a log that fails leaves no trace."""

import pytest

from tests.engine.harness import objects, open_engine, read, record, seqs, write
from tests.engine.write.commit_bench import DISK, EPHEMERAL, FSYNC, Bench, heads, is_refused
from topics.engine.state.topic import FIRST_CEILING
from topics.engine.steps import run_all
from topics.engine.write import apply
from topics.engine.write.commit import Halted, Ticket
from topics.engine.write.render import PLAIN_MAX_RECORDS
from topics.errors import TopicsError
from topics.model.records import TagMatch
from topics.model.topic import ConfigPatch
from topics.storage.log import entry as log_entry
from topics.storage.log import frame


def test_nothing_takes_effect_before_the_turn_ends():
    bench = Bench(a=DISK)
    ticket = bench.engine.append("a", write())
    assert (ticket.done, bench.engine.topic("a").head, bench.log.frames) == (False, 0, [])
    bench.turn()
    assert (ticket.value().first, bench.engine.topic("a").head) == (1, 1)


def test_single_records_of_one_turn_and_topic_are_one_entry():
    bench = Bench(a=DISK, b=DISK)
    wanted = [
        ("a", "x", None), ("b", None, "n"), ("a", None, None), ("a", "y", "n"), ("b", "z", "n"), ("a", "x", "m"),
    ]  # fmt: skip
    tickets = [
        bench.engine.append(name, write(record(str(n), tag=tag), node=node))
        for n, (name, tag, node) in enumerate(wanted)
    ]
    bench.turn()
    assert [(head.first, head.count) for blob in bench.log.frames for head in heads(blob)] == [(1, 4), (1, 2)]
    assert [ticket.value().first for ticket in tickets] == [1, 1, 2, 3, 2, 4]
    again = open_engine()
    for name in ("a", "b"):
        again.put_topic(name, DISK)
    again.flush()
    for blob in bench.log.frames:
        entry = log_entry.decode(frame.decode(memoryview(blob), 0)[0], path="", at=0)
        apply.append(again.state, again.state.by_id[entry.topic_id], entry)
    for name in ("a", "b"):
        assert objects(read(again, name)) == objects(read(bench.engine, name))
        columns = [engine.topic(name).open.columns for engine in (again, bench.engine)]
        assert [[(each.tag_at(at), each.node_at(at)) for at in range(len(each))] for each in columns] == [
            [(tag, node) for topic, tag, node in wanted if topic == name]
        ] * 2


@pytest.mark.parametrize("nodes", [("n", None, "m"), (None, "n", None), ("n", "n", "m")])
def test_replayed_single_records_keep_their_nodes(nodes):
    bench = Bench(a=DISK)
    for node in nodes:
        bench.engine.append("a", write(record("1"), node=node))
        bench.turn()
    assert len(bench.log.frames) == len(nodes)
    again = open_engine()
    again.put_topic("a", DISK)
    again.flush()
    for blob in bench.log.frames:
        entry = log_entry.decode(frame.decode(memoryview(blob), 0)[0], path="", at=0)
        apply.replay_append(again.state, again.topic("a"), entry)
    assert [row.get("$node") for row in objects(read(again, "a"))] == list(nodes)
    assert objects(read(again, "a")) == objects(read(bench.engine, "a"))


def test_an_entry_of_many_single_records_stays_small():
    bench = Bench(a=DISK)
    tickets = [bench.engine.append("a", write()) for _ in range(1100)]
    large = [bench.engine.append("a", write(record('"' + "x" * 200_000 + '"'))) for _ in range(2)]
    last = bench.engine.append("a", write())
    bench.turn()
    counts = [(head.first, head.count) for blob in bench.log.frames for head in heads(blob)]
    assert counts == [(1, 1024), (1025, 77), (1102, 2)]
    assert [ticket.value().last for ticket in (*tickets, *large, last)] == list(range(1, 1104))


def test_small_batches_of_one_turn_are_one_entry_and_keep_their_tags_and_nodes():
    bench = Bench(a=DISK)
    tags = [["x"], [None, "y"], ["x", "y", None], [None] * 5, ["z"] * 40]
    nodes = ["n", None, "n", "m", None]
    writes = [
        write(*(record(f"[{tag_at},\n1]", tag=tag) for tag_at, tag in enumerate(batch)), node=node)
        for batch, node in zip(tags, nodes, strict=True)
    ]
    tickets = [bench.engine.append("a", one) for one in writes]
    assert bench.engine.commits.pending_bytes > 0
    bench.turn()
    assert [(head.first, head.count) for blob in bench.log.frames for head in heads(blob)] == [(1, 51)]
    assert [(one.first, one.last, one.head) for one in (ticket.value() for ticket in tickets)] == [
        (1, 1, 1), (2, 3, 3), (4, 6, 6), (7, 11, 11), (12, 51, 51),
    ]  # fmt: skip
    topic, columns = bench.engine.topic("a"), bench.engine.topic("a").open.columns
    assert [columns.tag_at(at) for at in range(51)] == [tag for batch in tags for tag in batch]
    assert [columns.node_at(at) for at in range(51)] == [
        node for batch, node in zip(tags, nodes, strict=True) for _ in batch
    ]
    rows = objects(read(bench.engine, "a"))
    assert [row["data"] for row in rows] == [[at, 1] for batch in tags for at in range(len(batch))]
    assert [row["$seq"] for row in rows] == list(range(1, 52))
    assert (bench.engine.commits.pending_bytes, topic.staged_bytes, topic.staged_count, topic.pending) == (0, 0, 0, 0)


def test_refused_batches_that_share_an_entry_give_their_seqs_back():
    bench = Bench(a=DISK)
    topic = bench.engine.topic("a")
    bench.log.write_fails = True
    tickets = [bench.engine.append("a", write(*[record()] * n)) for n in (2, 5, 1)]
    bench.engine.flush()
    assert all(map(is_refused, tickets))
    assert (topic.next_seq, topic.staged_bytes, bench.engine.commits.pending_bytes) == (1, 0, 0)
    bench.log.write_fails = False
    ticket = bench.engine.append("a", write(record(), record()))
    bench.turn()
    assert (ticket.value().first, ticket.value().last, topic.head) == (1, 2, 2)


def test_invalid_record_of_a_small_batch_refuses_that_batch_alone():
    bench = Bench(a=DISK)
    before = bench.engine.append("a", write(record(), record()))
    with pytest.raises(TopicsError):
        bench.engine.append("a", write(record(), record(tag="x" * 257)))
    after = bench.engine.append("a", write(record(), record()))
    bench.turn()
    assert [(one.value().first, one.value().last) for one in (before, after)] == [(1, 2), (3, 4)]


def test_the_verbs_of_a_turn_share_one_flush():
    scheduled = []
    engine = open_engine()
    engine.put_topic("a", DISK)
    engine.put_topic("b", DISK)
    engine.flush()
    engine.commits.schedule = scheduled.append
    for _ in range(3):
        engine.append("a", write())
        engine.append("b", write())
    assert scheduled == [engine.commits.end_turn]


def test_frames_are_in_the_log_in_the_order_of_the_verbs():
    bench = Bench(a=FSYNC)
    bench.engine.append("a", write())
    run_all(bench.engine.delete_records("a", before_seq=2, match=None))
    bench.engine.append("b", write(config=FSYNC))
    bench.turn()
    bench.engine.put_topic("a", ConfigPatch(ttl_ms=5))
    bench.engine.drop_topic("a")
    bench.turn()
    assert bench.kinds() == [
        log_entry.APPEND, log_entry.DELETE, log_entry.CREATE, log_entry.APPEND, log_entry.CONFIGURE, log_entry.DROP,
    ]  # fmt: skip


def test_a_durable_write_is_invisible_until_it_is_synced():
    bench = Bench(a=FSYNC)
    ticket = bench.engine.append("a", write())
    bench.engine.flush()
    assert (ticket.done, bench.engine.topic("a").head, len(bench.log.syncs)) == (False, 0, 1)
    bench.log.finish()
    assert (ticket.value().head, seqs(read(bench.engine, "a"))) == (1, [1])


def test_write_during_a_sync_waits_for_the_next_sync():
    bench = Bench(a=FSYNC)
    first = bench.engine.append("a", write())
    bench.engine.flush()
    second = bench.engine.append("a", write())
    bench.engine.flush()
    assert len(bench.log.syncs) == 1
    bench.log.syncs.pop()()
    assert (first.done, second.done, len(bench.log.syncs)) == (True, False, 1)
    bench.log.finish()
    assert second.value().first == 2


def test_an_ephemeral_topic_logs_no_records_and_waits_for_nothing():
    bench = Bench(a=EPHEMERAL)
    bench.log.write_fails = True
    ticket = bench.engine.append("a", write())
    gone = run_all(bench.engine.delete_records("a", before_seq=9, match=None))
    bench.engine.flush()
    assert (ticket.value().first, gone.value().deleted, bench.log.frames) == (1, 1, [])


def test_ephemeral_write_behind_a_refused_one_is_refused():
    bench = Bench(a=EPHEMERAL)
    topic = bench.engine.topic("a")
    topic.ceiling = topic.ceiling_staged = 0
    waits = bench.engine.append("a", write())
    topic.ceiling = 9_000  # as if a sync of a ceiling had just ended
    behind = bench.engine.append("a", write(record(meta="{}")))
    assert (waits.gated, behind.gated, behind.behind) == (True, False, True)
    bench.log.write_fails = True
    bench.engine.flush()
    assert is_refused(waits)
    assert is_refused(behind)
    bench.log.write_fails = False
    ticket = bench.engine.append("a", write())
    bench.turn()
    assert (ticket.value().first, topic.head) == (1, 1)


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_failed_log_write_refuses_the_turn_and_reuses_its_seqs(durability):
    bench = Bench(a=durability)
    bench.engine.append("a", write())
    bench.turn()
    bench.log.write_fails = True
    tickets = [bench.engine.append("a", write(record(), record())) for _ in range(2)]
    tickets += [
        run_all(bench.engine.delete_records("a", before_seq=9, match=None)),
        bench.engine.append("new", write()),
    ]
    bench.turn()
    assert all(is_refused(ticket) for ticket in tickets)
    topic = bench.engine.topic("a")
    assert (topic.head, topic.count, topic.next_seq, topic.staged_count, topic.staged_bytes, topic.pending) == (
        1,
        1,
        2,
        0,
        0,
        0,
    )
    assert "new" not in bench.engine.topics
    bench.log.write_fails = False
    ticket = bench.engine.append("a", write())
    bench.turn()
    assert (ticket.value().first, seqs(read(bench.engine, "a"))) == (2, [1, 2])


def test_failed_sync_answers_no_write():
    bench = Bench(a=FSYNC)
    waiting = [bench.engine.append("a", write()), bench.engine.append("a", write())]
    bench.engine.flush()
    written = bench.engine.append("a", write())
    bench.engine.flush()
    staged = bench.engine.append("a", write())
    ended = []
    bench.engine.commits.on_halt = ended.append
    bench.log.sync_fails = True
    with pytest.raises(Halted, match="the disk does not answer"):
        bench.log.finish()
    assert not any(ticket.done for ticket in (*waiting, written, staged))
    assert [str(error) for error in ended] == ["the disk does not answer"]
    bench.log.sync_fails = False
    with pytest.raises(Halted):
        bench.engine.put_topic("b", ConfigPatch())


def test_a_refused_change_leaves_the_topic_as_it_was():
    bench = Bench(a=DISK)
    bench.log.write_fails = True
    epoch = bench.engine.topic("a").epoch
    for change in (
        lambda: bench.engine.put_topic("a", ConfigPatch(ttl_ms=5)),
        lambda: bench.engine.drop_topic("a"),
        lambda: bench.engine.put_topic("new", ConfigPatch()),
    ):
        ticket = change()
        bench.turn()
        assert is_refused(ticket)
    topic = bench.engine.topic("a")
    assert (topic.epoch, topic.config.ttl_ms, topic.changing, list(bench.engine.topics)) == (epoch, 0, False, ["a"])
    bench.log.write_fails = False
    ticket = bench.engine.put_topic("new", ConfigPatch())
    bench.turn()
    assert ticket.value().created


def test_a_refused_creation_takes_the_write_that_came_with_it():
    bench = Bench()
    bench.log.write_fails = True
    ticket = bench.engine.append("a", write(config=FSYNC))
    bench.engine.flush()
    assert is_refused(ticket)
    assert bench.engine.topics == {}
    assert bench.engine.state.totals.records == 0


def test_verb_that_depends_on_a_waiting_change_syncs_it_first():
    bench = Bench(a=FSYNC)
    change = bench.engine.put_topic("a", ConfigPatch(cap_records=1))
    ticket = bench.engine.append("a", write(record(), record()))
    assert change.done, "the log was synced for it"
    bench.turn()
    assert (ticket.value().last, bench.engine.topic("a").count) == (2, 1)


def test_sync_that_ends_after_a_forced_sync_changes_nothing():
    bench = Bench(a=FSYNC)
    bench.engine.append("a", write())
    bench.engine.flush()
    [late] = bench.log.syncs
    bench.engine.put_topic("a", ConfigPatch(ttl_ms=9))
    assert bench.engine.topic("a").head == 1
    bench.log.syncs.clear()
    late()
    assert bench.engine.topic("a").head == 1
    bench.turn()


def test_failed_forced_sync_answers_no_write():
    bench = Bench(a=FSYNC)
    waiting = bench.engine.append("a", write())
    bench.engine.flush()
    bench.log.sync_fails = True
    with pytest.raises(Halted):
        bench.engine.put_topic("a", ConfigPatch(ttl_ms=9))
    assert not waiting.done


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_callback_of_a_write_may_change_its_topic(durability):
    bench = Bench(a=durability)
    tickets = [bench.engine.append("a", write()) for _ in range(3)]
    changes = []
    tickets[0].on_done(lambda done: changes.append(bench.engine.put_topic("a", ConfigPatch(cap_records=2))))
    bench.turn()
    assert [ticket.value().first for ticket in tickets] == [1, 2, 3]
    bench.turn()
    assert changes[0].value().topic.config.cap_records == 2
    assert seqs(read(bench.engine, "a", from_seq=1)) == [2, 3]


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_callback_of_a_write_may_drop_its_topic(durability):
    bench = Bench(a=durability)
    tickets = [bench.engine.append("a", write()) for _ in range(3)]
    tickets[1].on_done(lambda done: bench.engine.drop_topic("a"))
    bench.turn()
    bench.turn()
    assert [ticket.value().first for ticket in tickets] == [1, 2, 3]
    assert bench.engine.topics == {}


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_callback_of_a_write_may_write(durability):
    bench = Bench(a=durability)
    chain = []

    def again(done) -> None:
        if len(chain) < 5:
            chain.append(bench.engine.append("a", write()))
            chain[-1].on_done(again)
            bench.engine.flush()

    for _ in range(3):
        bench.engine.append("a", write()).on_done(again)
    for _ in range(8):
        bench.turn()
    assert [ticket.value().first for ticket in chain] == [4, 5, 6, 7, 8]


def test_callbacks_of_a_ticket_run_in_the_order_they_were_added():
    bench = Bench(a=DISK)
    ticket = bench.engine.append("a", write())
    called = []
    ticket.on_done(lambda done: called.append(1))
    ticket.on_done(lambda done: called.append(2))
    bench.turn()
    ticket.on_done(lambda done: called.append(3))
    assert called == [1, 2, 3]


def test_delete_by_tag_sees_earlier_writes_of_its_turn():
    bench = Bench(a=FSYNC)
    bench.engine.append("a", write(record(tag="x"), record()))
    gone = run_all(bench.engine.delete_records("a", before_seq=None, match=TagMatch("Eq", "x")))
    bench.turn()
    assert (gone.value().deleted, gone.value().earliest) == (1, 2)


def test_write_behind_a_gated_one_needs_no_sync_of_its_own():
    """Or a topic that is written to all the time would never come out of waiting again."""
    bench = Bench(a=DISK)
    bench.engine.append("a", write(*[record()] * FIRST_CEILING))
    bench.engine.flush()
    first = bench.engine.append("a", write(record()))  # above the ceiling
    bench.engine.flush()
    assert (first.done, len(bench.log.syncs)) == (False, 1)
    bench.engine.topic("a").ceiling = 10 * FIRST_CEILING  # from here on nothing waits for its own sake
    behind = [bench.engine.append("a", write()) for _ in range(3)]
    bench.engine.flush()
    assert not any(ticket.done for ticket in behind)
    bench.log.syncs.pop()()
    assert [ticket.value().first for ticket in (first, *behind)] == [FIRST_CEILING + n for n in (1, 2, 3, 4)]
    assert bench.log.syncs == []


def test_next_sync_waits_some_turns_so_that_writers_share_it():
    bench = Bench(a=FSYNC)
    later = []
    commits = bench.engine.commits
    commits.gather_turns, commits.schedule = 2, later.append

    def turn() -> None:
        now, later[:] = later[:], []
        for call in now:
            call()

    first = bench.engine.append("a", write())
    turn()
    assert len(bench.log.syncs) == 1, "there is no other writer: it begins at once"
    second = bench.engine.append("a", write())
    turn()
    bench.log.syncs.pop()()
    assert (first.done, second.done, bench.log.syncs) == (True, False, [])
    third = bench.engine.append("a", write())  # who was answered writes again
    turn()
    assert bench.log.syncs == []
    turn()
    assert len(bench.log.syncs) == 1
    bench.log.syncs.pop()()
    assert (second.value().first, third.value().first) == (2, 3)
    turn()
    turn()
    assert (bench.log.syncs, later) == ([], [])


def test_single_writes_of_a_turn_share_an_entry_and_keep_their_seqs():
    bench = Bench(a=DISK, b=DISK)
    tickets = [bench.engine.append(name, write(record(str(n), tag=f"t{n}"))) for n, name in enumerate("aaabbaaaaaaa")]
    tickets.append(bench.engine.append("a", write(record("12", meta='{"k":1}'))))
    bench.turn()
    landed = [ticket.value() for ticket in tickets]
    assert [one.first for one in landed] == [1, 2, 3, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert all((one.last, one.head) == (one.first, one.first) for one in landed)
    found = objects(read(bench.engine, "a", limit=100))
    assert [(one["$seq"], one["data"]) for one in found] == list(enumerate([0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12], 1))
    assert bench.kinds() == [log_entry.APPEND] * 3


def test_write_during_a_refusal_follows_no_refused_leader():
    bench = Bench(a=DISK, e=EPHEMERAL)
    for name in ("a", "e"):
        bench.engine.append(name, write())
    bench.turn()
    kept, refused, late = bench.engine.append("e", write()), bench.engine.append("a", write()), []
    refused.on_done(lambda _: late.append(bench.engine.append("e", write(record("2")))))
    bench.log.write_fails = True
    bench.turn()
    bench.log.write_fails = False
    bench.turn()
    last = bench.engine.append("e", write(record("3")))
    bench.turn()
    assert is_refused(refused)
    assert [ticket.value().first for ticket in (kept, *late, last)] == [2, 3, 4]
    assert [one["data"] for one in objects(read(bench.engine, "e"))] == [1, 1, 2, 3]


def test_failing_callback_does_not_skip_the_others():
    bench, called = Bench(a=DISK), []

    def fail(ticket):
        called.append("fails")
        raise ValueError

    tickets = [bench.engine.append("a", write()) for _ in range(3)]
    for ticket in tickets:
        ticket.on_done(fail)
        ticket.on_done(lambda ticket: called.append("runs"))
    bench.turn()
    assert (called, bench.engine.topic("a").head) == (["fails", "runs"] * 3, 3)


def test_failing_callback_of_a_refused_write_does_not_skip_the_others():
    bench, called = Bench(a=FSYNC), []

    def fail(ticket):
        raise ValueError

    tickets = [bench.engine.append("a", write()) for _ in range(3)]
    tickets[0].on_done(fail)
    for ticket in tickets:
        ticket.on_done(lambda ticket: called.append(is_refused(ticket)))
    bench.log.write_fails = True
    bench.turn()
    assert called == [True] * 3


@pytest.mark.parametrize("durability", [DISK, FSYNC])
def test_entry_that_cannot_be_applied_halts_the_engine(durability, monkeypatch):
    bench, ended = Bench(a=durability, b=durability), []
    bench.engine.commits.on_halt = ended.append

    def fail(*args):
        raise MemoryError

    own = write(record(meta="{}"))  # a plain one would share the entry of `first`
    first, broken, later = (bench.engine.append(name, own) for name in ("b", "a", "b"))
    monkeypatch.setattr(apply, "append", lambda *args: fail() if args[1].name == "a" else original(*args))
    with pytest.raises(Halted):
        bench.turn()
    assert ([type(error) for error in ended], first.done, broken.done, later.done) == (
        [MemoryError],
        True,
        False,
        False,
    )
    with pytest.raises(Halted):
        bench.engine.append("b", write())


original = apply.append


def test_move_keeps_its_place_among_the_entries_of_both_topics():
    bench = Bench(a=FSYNC, b=DISK)
    order = []

    def ticket(name, **options):
        made = Ticket(bench.engine.topic(name), b"", lambda done: order.append(name + str(len(order))), **options)
        bench.engine.commits.stage(made)
        return made

    ticket("a", gated=True)
    ticket("b", also=[bench.engine.topic("a")])
    ticket("b")
    bench.engine.flush()
    assert order == []
    bench.log.finish()
    assert order == ["a0", "b1", "b2"]
    assert [(bench.engine.topic(name).pending, bench.engine.topic(name).waiting) for name in "ab"] == [(0, 0)] * 2


def test_later_gate_does_not_hold_an_entry_that_waited_for_an_earlier_one():
    bench = Bench(a=DISK)
    order = []

    def stage(name, **options):
        topic = bench.engine.topic("a")
        bench.engine.commits.stage(Ticket(topic, b"", lambda done: order.append(name), **options))

    stage("first gate", gated=True)
    bench.engine.flush()
    stage("behind it")
    bench.log.finish()
    assert order == ["first gate"]
    stage("after it")
    stage("second gate", gated=True)
    bench.engine.flush()
    assert order == ["first gate", "behind it", "after it"]
    bench.log.finish()
    assert order == ["first gate", "behind it", "after it", "second gate"]
    assert bench.engine.topic("a").waiting == 0


def test_plain_write_extends_the_last_ticket_of_its_topic():
    bench = Bench(a=DISK, b=DISK)
    extend = bench.engine.appends.extend
    before = bench.engine.append("a", write(record("1")))
    ticket = bench.engine.append("a", write(record("2")))
    assert extend(ticket, [write(record("3", tag="x"), record("4"))])
    assert not extend(before, [write(record("0"))]), "it is not the last one"
    other = bench.engine.append("b", write(record("1")))
    assert extend(other, [write(record("2"))])
    assert extend(ticket, [write(record("5"))])
    after = bench.engine.append("a", write(record("6")))
    topic = bench.engine.topic("a")
    bench.turn()
    landed = [(one.value().first, one.value().last, one.value().head) for one in (before, ticket, after, other)]
    assert landed == [(1, 1, 1), (2, 5, 5), (6, 6, 6), (1, 2, 2)]
    assert [one["data"] for one in objects(read(bench.engine, "a", limit=100))] == [1, 2, 3, 4, 5, 6]
    assert bench.kinds() == [log_entry.APPEND] * 2
    assert (topic.staged_count, topic.staged_bytes, bench.engine.commits.pending_bytes) == (0, 0, 0)
    assert not extend(after, [write(record("7"))]), "it has taken effect"


@pytest.mark.parametrize("n", [1, 2])
def test_refused_ticket_gives_back_the_seqs_it_was_extended_by(n):
    bench = Bench(a=DISK)
    topic = bench.engine.topic("a")
    tickets = [bench.engine.append("a", write(record())) for _ in range(n)]
    assert bench.engine.appends.extend(tickets[-1], [write(record(), record())])
    bench.log.write_fails = True
    bench.engine.flush()
    assert all(map(is_refused, tickets))
    assert (topic.next_seq, topic.staged_count, topic.staged_bytes) == (1, 0, 0)
    bench.log.write_fails = False
    again = bench.engine.append("a", write(*[record()] * (n + 2)))
    assert not bench.engine.appends.extend(tickets[-1], [write(record())]), (
        "it was refused, and other records have its seqs"
    )
    bench.turn()
    assert (again.value().first, again.value().last) == (1, n + 2)


@pytest.mark.parametrize("config", [ConfigPatch(cap_records=5), ConfigPatch(schema={"type": "integer"})])
def test_write_that_must_be_checked_extends_nothing(config):
    bench = Bench(a=config)
    ticket = bench.engine.append("a", write(record("1")))
    assert not bench.engine.appends.extend(ticket, [write(record("2"))])


def test_write_with_a_key_or_more_than_a_tag_extends_nothing():
    bench = Bench(a=DISK)
    ticket = bench.engine.append("a", write(record("1")))
    extend = bench.engine.appends.extend
    assert not extend(ticket, [write(record("2"), idempotency_key="k")])
    assert not extend(ticket, [write(record("2", meta="{}"))])
    assert not extend(ticket, [write(record("2", tag="x" * 257))])
    assert not extend(ticket, [write(*[record("2")] * PLAIN_MAX_RECORDS)]), "the entry has no room for it"
    run_all(bench.engine.delete_records("a", before_seq=2, match=None))
    assert not extend(ticket, [write(record("2"))]), "another entry of the topic follows it"
    bench.turn()
    assert bench.engine.topic("a").head == 1


def test_extended_ticket_of_a_synced_topic_waits_for_the_sync():
    bench = Bench(a=FSYNC)
    ticket = bench.engine.append("a", write(record("1")))
    assert bench.engine.appends.extend(ticket, [write(record("2"))])
    bench.engine.flush()
    late = bench.engine.append("a", write(record("3")))
    assert not bench.engine.appends.extend(ticket, [write(record("4"))]), "its entry is in the log"
    bench.engine.flush()
    assert (ticket.done, late.done, bench.engine.topic("a").head) == (False, False, 0)
    bench.log.finish()
    assert (ticket.value().last, late.value().first) == (2, 3)
