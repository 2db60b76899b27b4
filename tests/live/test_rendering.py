"""Frames of watchers that do not get back what their own nodes wrote."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.harness import open_engine, record
from topics.engine.state.topic import Topic
from topics.model.records import Projection, TagMatch, WriteRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import View
from topics.server.limits.budget import MemoryBudget
from topics.server.push import rendering
from topics.server.push.rendering import FrameRenderer, RenderedFrame

NODES = ("a", "b", "c", None)

written = st.lists(
    st.tuples(st.sampled_from(NODES), st.sampled_from(("red", "blue", None)), st.booleans()), min_size=1, max_size=30
)
projections = st.builds(Projection, tags=st.booleans(), meta=st.booleans(), data=st.booleans())


def topic_of(records: list[tuple[str | None, str | None, bool]], **config: Any) -> Topic:
    engine = open_engine()
    engine.put_topic("t", ConfigPatch(**config))
    engine.flush()
    for at, (node, tag, has_meta) in enumerate(records):
        new = record(str(at), tag=tag, node=node, meta='{"m":1}' if has_meta else None)
        engine.append("t", WriteRequest([new]))
    engine.flush()
    return engine.topic("t")


def view(nodes: frozenset[str] | None = None, **options: Any) -> View:
    fields = {"limit": 256, "max_bytes": 1 << 20, "match": None, "projection": Projection(), "strong": False}
    return View(nodes=nodes, **fields | options)


def render(topic: Topic, view: View, from_seq: int = 0) -> RenderedFrame:
    return FrameRenderer(topic, MemoryBudget(), lambda _: topic.head).render(view, from_seq, None, 0)


def content(frame: RenderedFrame) -> tuple[int, int, Any]:
    return frame.count, frame.next_seq, json.loads(frame.payload) if frame.count else None


@given(
    written, projections, st.sampled_from((None, "red")), st.frozensets(st.sampled_from(("a", "b", "z")), max_size=3)
)
def test_frame_without_nodes_is_what_a_read_without_them_returns(
    records: list[tuple[str | None, str | None, bool]], projection: Projection, tag: str | None, nodes: frozenset[str]
):
    topic = topic_of(records)
    match = None if tag is None else TagMatch("Eq", tag)
    wanted = view(nodes, projection=projection, match=match)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendering, "MAX_SHARED_SEQS", -1)
        read = content(render(topic, wanted, from_seq=1))
    assert content(render(topic, wanted, from_seq=1)) == read


def test_views_that_differ_in_their_nodes_share_a_frame():
    topic = topic_of([("a", None, False), ("b", None, False)])
    frame = render(topic, view())
    assert frame.without(frozenset("z")) is frame
    own = frame.without(frozenset("a"))
    assert own is frame.without(frozenset("a"))
    assert [one["$node"] for one in json.loads(own.payload)["records"]] == ["b"]
    assert frame.without(frozenset("ab")).count == 0


def test_topic_without_dedupe_gives_every_reader_everything():
    frame = render(topic_of([("a", None, False)], dedupe_node=False), view())
    assert frame.without(frozenset("a")) is frame


def test_all_forms_of_a_frame_have_the_same_content():
    frame = render(topic_of([("a", None, True), ("b", "red", False)]), view()).without(frozenset("a"))
    event, socket = frame.single(), frame.socket(lambda size: b"%d:" % size)
    assert event == b"id: %b\nevent: record\ndata: %b\n\n" % (frame.cursor(), frame.payload)
    size, _, text = socket.partition(b":")
    assert int(size) == len(text)
    assert json.loads(text) == {"op": "record"} | json.loads(frame.payload)
