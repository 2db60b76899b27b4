"""The open segments that a start finds in a file: checked at once, decoded when they are first used."""

import errno
import threading

import pytest

from tests.simulated.disk import SimDisk, SimFile
from tests.simulated.harness import SimServer
from topics.engine.durable import snapshot_load
from topics.model.records import TagMatch
from topics.storage.segments import codec
from topics.storage.segments.segment import MemorySegment

NAMES = ["a", "b", "c"]


def restarted() -> SimServer:
    """Return a start that finds three topics of two records each in a tails file; one of the last has a mark."""
    server = SimServer.start(SimDisk(seed=7))
    for name in NAMES:
        server.append(name, '"first"', '"second"', tag="t")
    server.done(server.engine.delete_seqs("c", [2]))
    return server.stop()


def packed(server: SimServer) -> list[str]:
    return [name for name, topic in server.engine.state.by_name.items() if topic.open._packed is not None]


def test_start_leaves_topics_packed_until_they_are_used():
    server = restarted()
    assert packed(server) == ["a", "b"]  # marks are looked at, to count the live records
    assert [server.engine.topic(name).count for name in NAMES] == [2, 2, 1]

    assert server.data("a") == ['"first"', '"second"']
    assert packed(server) == ["b"]


def test_checkpoint_leaves_unused_topics_packed_and_in_their_file():
    server = restarted()
    server.append("a", '"third"')
    before = server.engine.state.by_name["b"].saved_tail.ref
    server.checkpoint()
    assert packed(server) == ["b"]
    assert server.engine.state.by_name["b"].saved_tail.ref == before

    again = server.stop()
    assert [again.data(name) for name in NAMES] == [
        ['"first"', '"second"', '"third"'],
        ['"first"', '"second"'],
        ['"first"'],
    ]


def test_start_shares_what_is_equal_and_no_losses():
    server = SimServer.start(SimDisk(seed=7))
    for at, name in enumerate("abcd"):
        server.put(name, cap_records=(3, 5)[at % 2])
        server.append(name, "1", "2")
    server = server.stop()
    topics = server.engine.state.by_name

    assert topics["a"].config is topics["c"].config
    assert topics["b"].config is topics["d"].config
    assert [topic.config.cap_records for topic in topics.values()] == [3, 5, 3, 5]
    server.append("b", *"345678")
    after = server.stop()
    assert [after.walk(name)[1] for name in "abcd"] == [[], [(1, 3, "cap")], [], []]
    assert [after.engine.state.by_name[name].losses.total for name in "abcd"] == [0, 3, 0, 0]


@pytest.mark.parametrize("pieces", [1, 64])
def test_start_reads_the_tails_of_several_files_in_pieces(monkeypatch, pieces):
    monkeypatch.setattr(snapshot_load, "PIECES", pieces)
    monkeypatch.setattr(snapshot_load, "PIECE_BYTES", 600)  # one tail and a part of the next
    server = SimServer.start(SimDisk(seed=7))
    for number in range(20):
        server.append(f"t{number}", f'"{number}"', '"%s"' % ("x" * number * 20))
    server = server.stop()
    server.append("t7", '"last"')
    server.checkpoint()  # t7 is in a later tails file than its neighbours

    begun = len(server.disk.calls)
    after = server.stop()
    reads = [call for call in after.disk.calls[begun:] if call.op == "pread" and call.path.endswith(".tails")]
    assert len({call.path for call in reads}) == 2
    assert len(reads) < 20
    for number in range(20):
        rows = after.data(f"t{number}")
        assert rows[0] == f'"{number}"'
        assert len(rows) == (3 if number == 7 else 2)


@pytest.mark.parametrize("fails", ["error", "short"])
def test_start_reads_around_a_bad_sector_that_no_topic_needs(monkeypatch, fails):
    server = SimServer.start(SimDisk(seed=7))
    for name in NAMES:
        server.append(name, '"first"', '"%s"' % ("x" * 3000))
    server.checkpoint()
    dropped = server.engine.topic("b").saved_tail.ref
    server.drop("b")
    server.checkpoint()
    kept = [server.engine.topic(name).saved_tail.ref for name in "ac"]
    assert {ref.tails for ref in kept} == {dropped.tails}

    bad, pread, reads = dropped.offset + 1000, SimFile.pread, []

    def pread_around(file, size, at):
        if not file.path.endswith(".tails"):
            return pread(file, size, at)
        reads.append((at, size))
        if at <= bad < at + size:
            if fails == "error":
                raise OSError(errno.EIO, "Input/output error", file.path)
            size = 100
        return pread(file, size, at)

    monkeypatch.setattr(SimFile, "pread", pread_around)
    after = server.crash("keep")
    assert after.recovered is not None
    assert after.recovered.damage == []
    assert [len(after.data(name)) for name in "ac"] == [2, 2]
    alone = [(ref.offset, ref.size) for ref in kept]
    assert reads == [(kept[0].offset, snapshot_load.PIECE_BYTES), *alone], "no second piece is tried"


def test_start_fails_at_a_bad_sector_in_a_tail_of_a_topic():
    server = SimServer.start(SimDisk(seed=7))
    server.append("a", "1")
    server.checkpoint()
    disk = server.disk.crash("keep")
    disk.fail(op="pread", path="*.tails", times=2)
    with pytest.raises(OSError, match="Input/output error"):
        server.next(disk)


@pytest.mark.parametrize("first_use", ["append", "delete below", "delete one", "delete by tag", "drop"])
def test_every_use_of_a_packed_topic_finds_its_records(first_use):
    server = restarted()
    if first_use == "append":
        assert server.append("b", '"third"').last == 3
        assert server.data("b") == ['"first"', '"second"', '"third"']
    elif first_use == "delete below":
        assert server.delete("b", before_seq=2).deleted == 1
        assert server.data("b") == ['"second"']
    elif first_use == "delete one":
        assert server.done(server.engine.delete_seqs("b", [1])).deleted == 1
        assert server.data("b") == ['"second"']
    elif first_use == "delete by tag":
        assert server.delete("b", match=TagMatch("Eq", "t")).deleted == 2
        assert server.data("b") == []
    else:
        assert server.drop("b").deleted
        assert "b" not in server.engine.topics
    assert packed(server) == ["a"]
    expected = server.listing()
    assert server.stop().listing() == expected


def test_two_threads_that_use_a_packed_segment_decode_it_once(monkeypatch):
    segment = restarted().engine.state.by_name["a"].open
    decode, entered, asked = codec.decode, threading.Event(), threading.Event()
    decoded, seen = [], []

    def slow_decode(data, *, path):
        entered.set()
        assert asked.wait(30)
        decoded.append(path)
        return decode(data, path=path)

    monkeypatch.setattr(codec, "decode", slow_decode)

    def first():
        seen.append(segment.columns)

    def second():
        assert entered.wait(30)
        asked.set()
        seen.append(segment.columns)

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(decoded) == 1
    assert len(seen) == 2
    assert seen[0] is seen[1]
    assert bytes(segment.rendered).count(b'"$seq"') == 2


def test_segment_has_no_other_attributes():
    with pytest.raises(AttributeError, match="colour"):
        MemorySegment(1).colour  # noqa: B018
    with pytest.raises(AttributeError):
        MemorySegment.__new__(MemorySegment).columns  # noqa: B018


def test_damaged_tail_is_reported_at_the_start_not_at_its_first_use():
    server = SimServer.start(SimDisk(seed=7))
    server.append("a", '"first"', '"second"')
    server.append("b", '"first"')
    server.close()
    [path] = [path for path in server.disk.files() if path.endswith(".tails")]
    server.disk.flip(path, 8 * (codec.HEADER_BYTES + 3))
    after = server.next(server.disk)
    assert after.recovered is not None
    assert [report.topic for report in after.recovered.damage] == ["a"]
    assert after.engine.topic("a").losses.runs == [(1, 2, "corrupt")]
    assert after.data("b") == ['"first"']
