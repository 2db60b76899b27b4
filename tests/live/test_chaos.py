"""Random writes, deletes, evictions and reconnects: every watcher accounts for every seq exactly once.

A watcher notes only what it has processed: records, and ranges that were reported as lost. Data that it received but
did not process before it dropped the connection is ignored, as after a crash. At the end every seq from 1 to the head
is in the history exactly once, or was deleted on request.
"""

import random
import threading
import time

import pytest

from tests.conftest import SMALL_PARTS
from tests.contract.api import Api, Background
from tests.live.events import Events

SECONDS = 3
KEPT, CAPPED, REMADE = "kept", "capped", "remade"


class History:
    """One epoch of one topic as one watcher saw it."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    @property
    def position(self) -> int:
        return max([0, *self.records[-1:], *(last for _, last in self.gaps[-1:])])

    def check(self, head: int, deleted: set[int]) -> None:
        assert self.records == sorted(set(self.records)), "a record was repeated, or came out of order"
        seen = set(self.records)
        for first, last in self.gaps:
            gap = set(range(first, last + 1))
            assert not gap & seen, f"reported twice: {sorted(gap & seen)[:5]}"
            seen |= gap
        missing = set(range(1, head + 1)) - seen - deleted
        assert not missing, f"{len(missing)} never reported, from {min(missing)} on"
        assert max(seen, default=0) <= head


class Watcher:
    """Watches all three topics in one session; drops, comes back, takes over itself, or begins a new session."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.api = Api(url)
        self.histories: dict[str, History] = {KEPT: History(), CAPPED: History()}
        self.epochs: list[History] = []  # of the topic that is deleted and created again
        self.processed_id: str | None = None
        self.turns = 0

    def run(self, over: threading.Event, heads: dict[str, int]) -> None:
        self.begin()
        while not over.is_set():
            for _ in range(self.random.randrange(1, 30)):
                if self.events.quiet(0.2):
                    break
                self.process()
            self.random.choice((self.drop, self.take_over, self.begin_again))()
        while any(self.histories[name].position < head for name, head in heads.items()):
            self.process()
        self.events.close()
        self.api.close()

    def begin(self) -> None:
        """Create a session that starts where the history ends."""
        self.remade = History()
        self.epochs.append(self.remade)
        topics = {name: {"from_seq": story.position} for name, story in self.histories.items()}
        limit = self.random.choice((1, 7, 256))
        body = {"topics": topics | {REMADE: {}}, "limit": limit}
        answer = self.api.call("POST", "/v0/watch?lenient=true", body)
        assert answer.is_success, answer.text
        self.path, self.processed_id = answer.json()["stream_url"], None
        self.events = Events(self.url, self.path)

    def begin_again(self) -> None:
        self.events.drop()
        self.begin()

    def drop(self) -> None:
        """Reset the connection before all is read, and reconnect with the last processed id."""
        self.events.drop()
        self.events = Events(self.url, self.path, last_id=self.processed_id)
        if self.processed_id is None:  # the server cannot know this: only a new session is exact
            self.begin_again()

    def take_over(self) -> None:
        """Open a second connection without an id, and read the first one to its end."""
        before, self.events = self.events, Events(self.url, self.path)
        for frame in before.rest():
            self.note(frame)
        before.close()

    def process(self) -> None:
        self.note(self.events.next())

    def note(self, frame) -> None:
        if frame.event == "error":
            assert frame.data["code"] in (409, 429), frame
            return
        self.processed_id = frame.id
        self.turns += 1
        name = frame.data["topic"]
        story = self.remade if name == REMADE else self.histories[name]
        if frame.event == "record":
            story.records += frame.seqs
            assert frame.data["to_seq"] >= frame.seqs[-1]
        elif frame.event == "tombstone":
            assert frame.data["reason"] in ("cap", "from_seq_too_old")
            story.gaps.append((frame.data["gap_from"], frame.data["gap_to"]))
        elif frame.event == "topic-deleted":
            assert name == REMADE


def write(url: str, seed: int, over: threading.Event, deleted: set[int]) -> None:
    """Append to all topics, delete from one, and delete and create another."""
    chance, api = random.Random(seed), Api(url)
    while not over.is_set():
        name = chance.choice((KEPT, KEPT, CAPPED, CAPPED, CAPPED, REMADE))
        n = chance.choice((1, 1, 3, 40))
        first = api.append(name, [{"data": seed, "tag": "x" if chance.random() < 0.2 else "y"} for _ in range(n)])
        if chance.random() < 0.05:
            api.call("DELETE", f"/v0/topics/{REMADE}")
        if name == KEPT and n == 3 and chance.random() < 0.3:
            with LOCK:  # the matches are read before the delete, so no other writer may add one
                doomed = api.read_all(KEPT, filter="x", from_seq=max(first["first_seq"] - 50, 0))
                api.delete(KEPT, match="x")
                deleted.update(record["$seq"] for record in doomed)
        time.sleep(0.001)
    api.close()


LOCK = threading.Lock()


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sealed"])
def test_every_watcher_sees_every_seq_exactly_once(start_live, tmp_path, durable):
    live = start_live(**({"data_dir": tmp_path / "data"} | SMALL_PARTS if durable else {}))
    live.api.put(KEPT)
    live.api.put(CAPPED, cap_records=60)
    live.api.put(REMADE)
    over, done = threading.Event(), threading.Event()
    deleted: set[int] = set()
    heads: dict[str, int] = {}
    watchers = [Watcher(live.url, seed) for seed in range(4)]
    watching = [Background(lambda each=each: each.run(done, heads)) for each in watchers]
    writing = [Background(lambda seed=seed: write(live.url, seed, over, deleted)) for seed in (11, 12)]
    time.sleep(SECONDS)
    over.set()
    for writer in writing:
        writer.result()
    for name in (KEPT, CAPPED):
        live.api.write(name, "the last")  # never deleted: the end that every watcher waits for
        heads[name] = live.api.state(name)["head_seq"]
    gone = deleted_seqs(live.api, heads[KEPT])
    assert deleted <= gone
    done.set()
    for watcher in watching:
        watcher.result()
    for watcher in watchers:
        assert watcher.turns > 20
        watcher.histories[KEPT].check(heads[KEPT], gone)
        watcher.histories[CAPPED].check(heads[CAPPED], set())
        for epoch in watcher.epochs:
            assert epoch.records == list(range(1, len(epoch.records) + 1)), "an epoch has gaps"


def deleted_seqs(api: Api, head: int) -> set[int]:
    """Return the seqs that can no longer be read."""
    return set(range(1, head + 1)) - {record["$seq"] for record in api.read_all(KEPT)}
