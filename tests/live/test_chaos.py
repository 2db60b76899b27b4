"""Writers, deletes, eviction, re-creation, and watchers that come and go: every story accounts for every seq once.

A watcher notes what it has processed, and nothing else: records, and ranges it was told are lost. What it received but
did not process when it dropped the connection is forgotten, as it would be in a process that crashed. At the end every
seq from 1 to the head is in the story exactly once, or was deleted on purpose.
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


class Story:
    """One topic, one life, as one watcher was told it."""

    def __init__(self) -> None:
        self.records: list[int] = []
        self.gaps: list[tuple[int, int]] = []

    @property
    def position(self) -> int:
        return max([0, *self.records[-1:], *(last for _, last in self.gaps[-1:])])

    def check(self, head: int, deleted: set[int]) -> None:
        assert self.records == sorted(set(self.records)), "a record was repeated, or came out of order"
        told = set(self.records)
        for first, last in self.gaps:
            gap = set(range(first, last + 1))
            assert not gap & told, f"told twice: {sorted(gap & told)[:5]}"
            told |= gap
        missing = set(range(1, head + 1)) - told - deleted
        assert not missing, f"{len(missing)} never told, from {min(missing)} on"
        assert max(told, default=0) <= head


class Watcher:
    """Watches all three topics in one session; drops, comes back, takes over itself, or begins a new session."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.api = Api(url)
        self.stories: dict[str, Story] = {KEPT: Story(), CAPPED: Story()}
        self.lives: list[Story] = []  # of the topic that is made again and again
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
        while any(self.stories[name].position < head for name, head in heads.items()):
            self.process()
        self.events.close()
        self.api.close()

    def begin(self) -> None:
        """A session that begins where the story ends."""
        self.remade = Story()
        self.lives.append(self.remade)
        topics = {name: {"from_seq": story.position} for name, story in self.stories.items()}
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
        """Leaves without having read all; comes back with what it has processed."""
        self.events.drop()
        self.events = Events(self.url, self.path, last_id=self.processed_id)
        if self.processed_id is None:  # nothing was processed, so nothing tells the server: only a new session is exact
            self.begin_again()

    def take_over(self) -> None:
        """A second connection without an id; the first one is read to its end, so that nothing on its way is lost."""
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
        story = self.remade if name == REMADE else self.stories[name]
        if frame.event == "record":
            story.records += frame.seqs
            assert frame.data["to_seq"] >= frame.seqs[-1]
        elif frame.event == "tombstone":
            assert frame.data["reason"] in ("cap", "from_seq_too_old")
            story.gaps.append((frame.data["gap_from"], frame.data["gap_to"]))
        elif frame.event == "topic-deleted":
            assert name == REMADE


def write(url: str, seed: int, over: threading.Event, deleted: set[int]) -> None:
    """Appends to all topics, deletes from one, and makes another anew."""
    chance, api = random.Random(seed), Api(url)
    while not over.is_set():
        name = chance.choice((KEPT, KEPT, CAPPED, CAPPED, CAPPED, REMADE))
        n = chance.choice((1, 1, 3, 40))
        first = api.append(name, [{"data": seed, "tag": "x" if chance.random() < 0.2 else "y"} for _ in range(n)])
        if chance.random() < 0.05:
            api.call("DELETE", f"/v0/topics/{REMADE}")
        if name == KEPT and n == 3 and chance.random() < 0.3:
            with LOCK:  # what is deleted is read first, so nobody may write a match in between
                doomed = api.read_all(KEPT, filter="x", from_seq=max(first["first_seq"] - 50, 0))
                api.delete(KEPT, match="x")
                deleted.update(record["$seq"] for record in doomed)
        time.sleep(0.001)
    api.close()


LOCK = threading.Lock()


@pytest.mark.parametrize("durable", [False, True], ids=["memory", "sealed"])
def test_every_watchers_story_accounts_for_every_seq_exactly_once(start_live, tmp_path, durable):
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
        live.api.write(name, "the last")  # never deleted, so that every story has an end to wait for
        heads[name] = live.api.state(name)["head_seq"]
    gone = deleted_seqs(live.api, heads[KEPT])
    assert deleted <= gone
    done.set()
    for watcher in watching:
        watcher.result()
    for watcher in watchers:
        assert watcher.turns > 20
        watcher.stories[KEPT].check(heads[KEPT], gone)
        watcher.stories[CAPPED].check(heads[CAPPED], set())
        for life in watcher.lives:
            assert life.records == list(range(1, len(life.records) + 1)), "a life was told with holes"


def deleted_seqs(api: Api, head: int) -> set[int]:
    """What nobody can read any more of a topic that loses nothing by itself."""
    return set(range(1, head + 1)) - {record["$seq"] for record in api.read_all(KEPT)}
