"""The sequence of a replica: order, lost answers, fencing, gaps. Races of two writers are random, with seeds."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulated.bucket import SimBucket
from topics.storage.replica import objects
from topics.storage.replica.bucket import BucketError
from topics.storage.replica.history import History
from topics.storage.replica.objects import Checkpoint, FileRef, log_name
from topics.storage.replica.sequence import ALONE, EVERYWHERE, NOWHERE, OBJECT_BYTES, End, Plan, Sequence, Server, State

REFS = [FileRef("snapshots/1.snap", "files/1", 1, 1)]


NEW = End()


def begun(*, end: End = NEW, interval_ms: int = 1000, max_lag_bytes: int = 1 << 40, name: str = "a") -> Sequence:
    """Return the sequence of a server that has just recovered, with snapshot 1."""
    server = Server(host=name, interval_ms=interval_ms, max_lag_bytes=max_lag_bytes)
    sequence = Sequence("r", name, end, server)
    sequence.note_checkpoint(Plan(1))
    return sequence


def send(sequence: Sequence, bucket: SimBucket, now_ms: int) -> str:
    """Send the next object as the uploader does. Return its kind, or an empty string."""
    upload = sequence.next(now_ms, now_ms)
    if upload is None:
        return ""
    sizes = sum(size for _, _, size in upload.head.pieces)
    upload.data = upload.data or objects.encode(upload.head, upload.body or bytes(sizes))
    name = log_name(upload.head.number)
    try:
        found = None if bucket.create(name, upload.data) else bucket.get(name)
    except BucketError as error:
        sequence.failed(str(error), now_ms)
        return "failed"
    if found is None:
        sequence.created(upload, now_ms)
    else:
        sequence.exists(upload, found, now_ms)
    return upload.head.kind


def open_replica(sequence: Sequence, bucket: SimBucket) -> None:
    assert send(sequence, bucket, 0) == "term"
    assert sequence.plan is not None
    sequence.note_files(sequence.plan, REFS)
    assert send(sequence, bucket, 0) == "checkpoint"
    assert sequence.state is State.FOLLOWING


def kinds(bucket: SimBucket) -> list[str]:
    names = sorted(name for name in bucket.objects if name.startswith("log/"))
    return [objects.decode(bucket.objects[name], at + 1).head.kind for at, name in enumerate(names)]


def test_bytes_wait_for_the_interval_unless_a_ticket_waits():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)

    sequence.note_synced((1, 100), 10)
    assert send(sequence, bucket, 900) == ""
    assert sequence.wake_in_ms(900) == 110
    assert send(sequence, bucket, 1010) == "bytes"
    sequence.note_synced((1, 200), 1020)
    sequence.waiting = 1
    assert send(sequence, bucket, 1020) == "bytes"

    assert sequence.uploaded == sequence.covered == (1, 200)
    assert kinds(bucket) == ["term", "checkpoint", "bytes", "bytes"]


def released(sequence: Sequence, writers: int, *, at_ms: int) -> None:
    """Upload what these writers wait for, in 30 ms. All of them are released at `at_ms`."""
    sequence.waiting = writers
    sequence.note_synced((1, max(sequence.synced[1], 0) + 100), at_ms - 30)
    upload = sequence.next(at_ms - 30, 0)
    assert upload is not None
    sequence.created(upload, at_ms)
    sequence.waiting = 0


def test_next_upload_waits_a_moment_for_the_writers_that_the_last_one_released():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    released(sequence, 64, at_ms=1030)
    sequence.note_synced((1, 200), 1031)
    sequence.waiting = 32
    assert sequence.next(1032, 1032) is None
    assert sequence.wake_in_ms(1032) == 28, "no longer than the last upload took"
    sequence.note_synced((1, 300), 1033)
    sequence.waiting = 56
    upload = sequence.next(1034, 1034)
    assert upload is not None, "nearly all are back"
    assert upload.upto == (1, 300)


def test_uploads_begin_at_once_after_one_that_waited_in_vain():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    released(sequence, 64, at_ms=1030)
    sequence.note_synced((1, 200), 1031)
    sequence.waiting = 2
    assert sequence.next(1059, 1059) is None
    upload = sequence.next(1060, 1060)
    assert upload is not None
    for round_ in range(1, ALONE):
        sequence.waiting, now_ms = 5, 1060 + 30 * round_
        sequence.created(upload, now_ms)
        sequence.waiting = 1  # fewer than waited before
        sequence.note_synced((1, 300 + round_), now_ms)
        upload = sequence.next(now_ms, now_ms)
        assert upload is not None, "the writers of the last upload do not write again"
    sequence.waiting = 5
    sequence.created(upload, 1500)
    sequence.waiting = 1
    sequence.note_synced((1, 400), 1500)
    assert sequence.next(1500, 1500) is None, "another attempt"


def test_much_log_is_cut_where_a_sync_ended():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    for mib in range(1, 11):
        sequence.note_synced((1, mib << 20), 0)

    assert [send(sequence, bucket, 0) for _ in range(3)] == ["bytes", "bytes", ""]
    assert sequence.uploaded == (1, 8 << 20)
    assert sequence.uploaded[1] - (4 << 20) <= OBJECT_BYTES


def test_pieces_follow_the_files_of_the_log():
    left = {1: 300, 4: 200}
    sequence = Sequence("r", "a", End(), Server())
    sequence.left = left
    assert sequence.pieces((1, 100), (1, 250)) == [(1, 100, 150)]
    assert sequence.pieces((1, 100), (6, 50)) == [(1, 100, 200), (4, 0, 200), (6, 0, 50)]
    assert sequence.pieces((4, 200), (6, 0)) == []


def test_lost_answer_is_found_to_be_ours():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    sequence.note_synced((1, 100), 0)
    bucket.lose(at=len(bucket.requests))

    assert send(sequence, bucket, 1000) == "failed"
    assert sequence.covered == (1, 0)
    assert send(sequence, bucket, 1050) == "", "it waits before it sends the object again"
    assert send(sequence, bucket, 1100) == "bytes"

    assert sequence.covered == (1, 100)
    assert kinds(bucket) == ["term", "checkpoint", "bytes"]


def test_object_that_was_sent_again_is_the_same():
    """What was synced meanwhile belongs to the next object: the first one may be in the bucket."""
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    sequence.note_synced((1, 100), 0)
    bucket.fail(at=len(bucket.requests), times=1)
    assert send(sequence, bucket, 1000) == "failed"

    sequence.note_synced((1, 300), 1001)
    assert send(sequence, bucket, 1200) == "bytes"
    assert sequence.covered == (1, 100)


def test_second_writer_fences_the_first():
    bucket, first = SimBucket(), begun()
    open_replica(first, bucket)
    second = begun(end=End(number=2, term=1, base=2), name="b")
    assert send(second, bucket, 0) == "term"

    first.note_synced((1, 100), 0)
    first.urgent = True
    send(first, bucket, 1000)

    assert first.state is State.FENCED
    assert first.fenced_by is not None
    assert (first.fenced_by.host, first.fenced_by.term) == ("b", 2)
    assert first.covered == NOWHERE
    assert first.next(5000, 5000) is None


def test_foreign_object_in_the_sequence_fences():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    bucket.objects[log_name(3)] = b"not ours"
    sequence.note_synced((1, 100), 0)

    send(sequence, bucket, 1000)

    assert sequence.state is State.FENCED
    assert "no object of a replica" in sequence.last_failure


def test_first_checkpoint_of_a_replica_waits_for_what_was_acknowledged_before_it():
    bucket, sequence = SimBucket(), begun()
    send(sequence, bucket, 0)
    assert sequence.covered == EVERYWHERE, "no server can take over"
    sequence.note_synced((1, 500), 0)
    assert sequence.plan is not None
    sequence.note_files(sequence.plan, REFS)
    assert sequence.covered == NOWHERE

    assert [send(sequence, bucket, 1) for _ in range(2)] == ["bytes", "checkpoint"]
    assert sequence.covered == (1, 500)


def test_later_term_has_no_gate_open_before_its_checkpoint():
    bucket = SimBucket()
    open_replica(begun(), bucket)
    sequence = begun(end=End(number=2, term=1, base=2), name="b")
    send(sequence, bucket, 0)
    sequence.note_synced((1, 500), 0)
    assert send(sequence, bucket, 1000) == "bytes"
    assert sequence.covered == NOWHERE
    assert sequence.state is not State.FOLLOWING


def test_checkpoint_names_the_first_object_with_its_log():
    bucket, left = SimBucket(), dict[int, int]()
    sequence = Sequence("r", "a", End(), Server())
    sequence.left = left
    sequence.note_checkpoint(Plan(1))
    open_replica(sequence, bucket)
    left[1] = 200
    sequence.note_synced((2, 50), 0)
    send(sequence, bucket, 1000)
    sequence.note_checkpoint(plan := Plan(2))
    sequence.note_synced((2, 90), 1000)
    send(sequence, bucket, 2000)
    sequence.note_files(plan, REFS)
    send(sequence, bucket, 2000)

    found = objects.decode(bucket.objects[log_name(5)], 5)
    assert found.head.kind == "checkpoint"
    assert found.checkpoint.since == 3


@pytest.mark.parametrize("written", [False, True])
def test_idle_writer_repeats_its_checkpoint(written: bool):
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    if written:  # after the snapshot: a restore needs these bytes still
        sequence.note_synced((1, 100), 0)
        assert send(sequence, bucket, 1_000) == "bytes"
    sequence.alive_ms = 5_000
    sent = [send(sequence, bucket, 10_000 + at * 5_000) for at in range(2_500)]

    assert (sent.count("checkpoint"), sent.count("alive")) == (2, 2_498)
    last = objects.decode(bucket.objects[log_name(sequence.base)], sequence.base)
    assert last.checkpoint == Checkpoint(snapshot=1, since=3 if written else sequence.base, clean=False, files=REFS)
    assert (sequence.state, sequence.held) == (State.FOLLOWING, [])


def test_checkpoint_that_completes_during_an_upload_waits_and_replaces_an_older_one():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    plans = [Plan(number) for number in (2, 3, 4)]
    for plan in plans:
        sequence.note_checkpoint(plan)

    assert sequence.plan is plans[0]
    assert sequence.held == [plans[0], plans[2]]
    sequence.note_files(plans[0], REFS)
    send(sequence, bucket, 0)
    assert sequence.plan is plans[2]


def test_gap_is_given_up_and_a_new_term_begins_with_the_next_checkpoint():
    bucket, sequence = SimBucket(), begun(max_lag_bytes=1000)
    open_replica(sequence, bucket)
    sequence.note_synced((1, 100), 0)
    bucket.fail(at=len(bucket.requests))
    assert send(sequence, bucket, 1000) == "failed"
    sequence.note_synced((1, 2000), 1001)
    assert sequence.state is State.LOST
    assert sequence.needed_from is None
    assert sequence.covered == NOWHERE

    bucket.heal()
    assert send(sequence, bucket, 9000) == "bytes", "what became of the last object must be known first"
    assert send(sequence, bucket, 9000) == ""
    sequence.note_checkpoint(Plan(2))
    assert [send(sequence, bucket, 9000)] == ["term"]
    assert sequence.plan is not None
    sequence.note_files(sequence.plan, REFS)
    assert send(sequence, bucket, 9000) == "checkpoint"
    assert (sequence.term, sequence.state) == (2, State.FOLLOWING)


def test_orderly_stop_uploads_the_end_first():
    bucket, sequence = SimBucket(), begun()
    open_replica(sequence, bucket)
    sequence.note_synced((1, 100), 0)
    sequence.note_checkpoint(plan := Plan(2, clean=True))
    sequence.note_files(plan, REFS)

    assert [send(sequence, bucket, 1) for _ in range(3)] == ["bytes", "checkpoint", ""]
    assert sequence.state is State.ENDED


def test_times_never_go_back():
    bucket, sequence = SimBucket(), begun(end=End(number=0, at_ms=5_000))
    open_replica(sequence, bucket)
    assert objects.decode(bucket.objects[log_name(2)], 2).head.at_ms == 5_000


class Racer:
    """A server that writes, restarts on its own or takes over at random, and notes what it acknowledged."""

    def __init__(self, name: str, bucket: SimBucket, random: Random) -> None:
        self.name = name
        self._bucket = bucket
        self._random = random
        self._starts = 0
        self._now_ms = 0
        self.sequence: Sequence | None = None
        self.acknowledged: list[tuple[int, tuple[int, int]]] = []  # term and position

    def start(self) -> None:
        history = History(self._bucket, "r", dict.fromkeys(self._numbers()))  # type: ignore[misc]
        self._starts += 1
        self.sequence = begun(end=history.end(), name=f"{self.name}{self._starts}")

    def _numbers(self) -> list[int]:
        found = (objects.number_of(name) for name in self._bucket.objects)
        return [number for number in found if number is not None]

    def step(self) -> None:
        """Do one thing: sync more of the log, send an object, or finish the files of a checkpoint."""
        sequence, act = self.sequence, self._random.randrange(4)
        if sequence is None or sequence.state is State.FENCED:
            return
        self._now_ms += self._random.randrange(2_000)
        if act == 0:
            number, offset = max(sequence.synced, (1, 0))
            sequence.note_synced((number, offset + self._random.randrange(1, 50)), self._now_ms)
            sequence.waiting = 1
        elif act == 1 and sequence.plan is not None:
            sequence.note_files(sequence.plan, REFS)
        else:
            send(sequence, self._bucket, self._now_ms)
        if sequence.state is State.FOLLOWING and sequence.covered > (1, 0):
            self.acknowledged.append((sequence.term, sequence.covered))


@pytest.mark.parametrize("block", range(10))
def test_two_writers_acknowledge_nothing_that_the_other_lacks(block: int):
    """100 races in each block: requests fail, answers get lost, servers start at any moment."""
    for seed in range(block * 100, block * 100 + 100):
        random, bucket = Random(seed), SimBucket()
        racers = [Racer("a", bucket, random), Racer("b", bucket, random)]
        for number in range(400):
            if random.random() < 0.1:
                (bucket.fail if random.random() < 0.5 else bucket.lose)(at=number, times=random.randrange(1, 4))
        for _ in range(120):
            racer = random.choice(racers)
            if random.random() < 0.04 or racer.sequence is None:
                try:
                    racer.start()
                except BucketError:
                    racer.sequence = None
            racer.step()
        check(bucket, [one for racer in racers for one in racer.acknowledged], seed)


def check(bucket: SimBucket, acknowledged: list[tuple[int, tuple[int, int]]], seed: int) -> None:
    names = sorted(name for name in bucket.objects if name.startswith("log/"))
    heads = [objects.decode(bucket.objects[name], at + 1).head for at, name in enumerate(names)]
    assert [head.term for head in heads] == sorted(head.term for head in heads), f"seed {seed}: a term was overtaken"
    writers = {(head.term, head.instance) for head in heads}
    assert len(writers) == len({term for term, _ in writers}), f"seed {seed}: two writers in one term"
    for term, position in acknowledged:
        in_term = [head for head in heads if head.term == term]
        assert max(head.upto for head in in_term) >= position, f"seed {seed}: {position} of term {term} is lost"
        assert any(head.kind == "checkpoint" for head in in_term), f"seed {seed}: term {term} has no checkpoint"
