"""Random histories of topics with routers: the engine and the reference model show the same topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw

from tests.reference.oracle_router import RouterOracle
from tests.simulated.draining import drain
from tests.simulated.harness import SimServer
from topics.engine.steps import run_all
from topics.errors import TopicsError
from topics.model.records import NewRecord, TagMatch, WriteRequest
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch

TOPICS = "abcd"
names = st.sampled_from(TOPICS)
records = st.builds(
    NewRecord,
    # Some records are larger than some topics may hold, or fill them.
    st.integers(0, 99).map(lambda number: Raw(b"%d" % number)) | st.sampled_from([Raw(b'"%b"' % (b"x" * 90))] * 2),
    st.sampled_from([None, "x", "y"]),
    st.sampled_from([None, "n1"]),
)
appends = st.tuples(st.just("append"), names, st.lists(records, min_size=1, max_size=4))
patches = st.builds(
    ConfigPatch,
    cap_records=st.sampled_from([0, 0, 2, 5]),
    cap_bytes=st.sampled_from([0, 0, 0, 120, 200]),
    discard=st.sampled_from(["old", "old", "reject"]),
    durability=st.sampled_from(["disk", "fsync", "memory"]),
)
puts = st.tuples(st.just("put"), names, patches)
deletes = st.tuples(st.just("delete"), names, st.sampled_from([None, 2, 4, 8]))
requests = st.builds(
    RouterRequest,
    source=names,
    dest=names,
    filter=st.sampled_from([None, None, "x", ["data", "Lt", 50]]),
    preserve_node=st.booleans(),
    preserve_tag=st.sampled_from([True, True, False]),
    from_seq=st.sampled_from([None, None, 0, 2]),
)
routers = st.tuples(st.just("router"), st.sampled_from(["r1", "r2", "r3", "r4"]), requests)
drops = st.tuples(st.just("drop_router"), st.sampled_from(["r1", "r2", "r3", "r4"])) | st.tuples(st.just("drop"), names)
verbs = st.one_of(appends, appends, appends, routers, routers, deletes, puts, drops)


class Pair:
    """The engine and its model. After each verb enough time passes for a full destination to be tried again."""

    def __init__(self) -> None:
        self.server = SimServer.start()
        self.oracle = RouterOracle(self.server.clock)

    def play(self, verb: tuple[Any, ...]) -> None:
        server, oracle = self.server, self.oracle
        match verb:
            case ("append", name, batch):
                request = WriteRequest(batch)
                self.both(lambda: server.engine.append(name, request), lambda: oracle.append(name, request))
            case ("put", name, patch):
                self.both(lambda: server.engine.put_topic(name, patch), lambda: oracle.put(name, patch))
            case ("delete", name, before):
                match_x = TagMatch("Eq", "x") if before is None else None
                self.both(
                    lambda: run_all(server.engine.delete_records(name, before_seq=before, match=match_x)),
                    lambda: oracle.delete(name, before_seq=before, match=match_x),
                )
            case ("router", name, request):
                self.put_router(name, request)
            case ("drop_router", name):
                assert server.done(server.engine.routers.drop(name)) == oracle.drop_router(name)
            case ("drop", name):
                wanted = sorted(
                    rule.name for rule in oracle.rules.values() if name in (rule.source.name, rule.dest.name)
                )
                assert server.drop(name).routers_removed == wanted
                oracle.drop(name)
        self.forward()
        self.compare()

    def both(self, act: Callable[[], Any], model: Callable[[], Any]) -> None:
        """Run both. Raise unless they have the same outcome or the same error."""
        try:
            model()
            expected = None
        except TopicsError as error:
            expected = error.code
        try:
            self.server.done(act())
            seen = None
        except TopicsError as error:
            seen = error.code
        assert seen == expected

    def put_router(self, name: str, request: RouterRequest) -> None:
        try:
            _, created = self.server.done(self.server.engine.routers.put(name, request))
        except TopicsError:
            return  # other tests check which routers are refused
        assert self.oracle.put_router(name, request) == created

    def forward(self) -> None:
        for _ in range(3):  # a chain of full topics gets room from its end
            self.server.clock.advance(ms=2_000)
            drain(self.server.engine)

    def compare(self) -> None:
        assert set(self.server.engine.topics) == set(self.oracle.topics)
        for name, model in self.oracle.topics.items():
            topic = self.server.engine.expire_and_get(name, touch=False)
            assert self.server.by_seq(name) == {fact.seq: fact.data.decode() for fact in model.live}, name
            assert (topic.head, topic.earliest, topic.evict_floor) == (model.head, model.earliest, model.evict_floor), (
                name
            )
            lost = {seq: reason for low, high, reason in topic.losses.runs for seq in range(low, high + 1)}
            assert lost == {fact.seq: fact.fate for fact in model.facts if fact.lost}, name
        for name, rule in self.oracle.rules.items():
            router = self.server.engine.routers.get(name)
            assert router.forwarded_total == rule.forwarded, name


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(verbs, min_size=1, max_size=20), st.integers(0, 20), st.booleans())
def test_history_with_routers_matches_the_model(history: list[tuple[Any, ...]], crash_at: int, looks: bool) -> None:
    """With `looks`, every topic is read right after the restart; otherwise the next verb is first."""
    pair = Pair()
    for at, verb in enumerate(history):
        pair.play(verb)
        if at == crash_at:
            pair.server = pair.server.crash("keep")
            pair.oracle.clock = pair.server.clock
            if looks:
                pair.compare()
