"""Patterns over many topics: the work they cause, and their limits."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from tests.live.manual import create, manual_app
from topics.engine.state.topic import Topic
from topics.errors import TopicsError
from topics.model.watch import TopicOptions, WatchRequest
from topics.server.access.caller import ANYONE
from topics.server.app import TopicsApp
from topics.server.push.sessions import WatchStream
from topics.server.push.subscription_set import PatternWaiters

EVERYTHING = {"*": TopicOptions()}


def looked_at(app: TopicsApp, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of topics the engine looks up from now on."""
    names: list[str] = []
    look = app.services.engine.expire_and_get

    def counting(name: str, *, touch: bool) -> Topic:
        names.append(name)
        return look(name, touch=touch)

    monkeypatch.setattr(app.services.engine, "expire_and_get", counting)
    return names


def test_pattern_with_too_many_topics_is_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    app, loop = manual_app(max_watch_topics=10)
    create(app, loop, [f"t{at:04}" for at in range(2_000)])
    names = looked_at(app, monkeypatch)
    with pytest.raises(TopicsError, match="more than 10 topics"):
        app.services.sessions.create(WatchRequest(topics=EVERYTHING), ANYONE, lenient=False)
    assert len(names) <= 21


def test_first_matching_pattern_decides_the_view() -> None:
    app, loop = manual_app()
    create(app, loop, ["a.1", "a.2", "b"])
    topics = {"a.*": TopicOptions(filter="x"), "*": TopicOptions(tail=True), "a.2": TopicOptions(from_seq=0)}
    session, _ = app.services.sessions.create(WatchRequest(topics=topics), ANYONE, lenient=False)
    filters = {one.topic.name: one.view.match and one.view.match.text for one in session.subscriptions.values()}
    assert filters == {"a.1": "x", "a.2": None, "b": None}


def test_stream_reports_topics_beyond_the_limit_once() -> None:
    app, loop = manual_app(max_watch_topics=5)
    session, _ = app.services.sessions.create(WatchRequest(topics=EVERYTHING), ANYONE, lenient=False)
    create(app, loop, [f"t{at:04}" for at in range(500)])
    services = app.services
    slot = services.quotas.open_stream(ANYONE)
    stream = WatchStream(services, services.sessions, session, position=None, slot=slot)
    sink: Any = FrameSink()
    stream.opened(sink)
    assert len(session.subscriptions) == 5
    assert [frame["topics"] for frame in sink.errors()] == [["t0005"]]
    create(app, loop, ["u"])
    assert [frame["topics"] for frame in sink.errors()] == [["t0005"], ["u"]]


class FrameSink:
    """Keeps the frames of a stream."""

    held = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def write(self, data: bytes) -> bool:
        self.frames.append(data)
        return True

    def errors(self) -> list[Any]:
        return [
            json.loads(frame.split(b"data: ")[1])
            for frame in b"".join(self.frames).split(b"\n\n")
            if frame.startswith(b"event: error")
        ]


def test_cursor_with_too_many_topics_is_refused() -> None:
    app, loop = manual_app(max_watch_topics=3)
    create(app, loop, ["t0", "t1", "t2", "t3"])
    cursor = urlsafe_b64encode(json.dumps({f"t{at}": 0 for at in range(4)}).encode()).decode()
    with pytest.raises(TopicsError, match="the cursor names 4 topics"):
        app.services.sessions.create(WatchRequest(topics={"t0": TopicOptions()}, cursor=cursor), ANYONE, lenient=False)


def test_new_topic_reaches_exactly_the_watchers_of_its_prefixes() -> None:
    app, loop = manual_app()
    create(app, loop, ["room:green"])
    topic, waiters, matched = app.services.engine.topic("room:green"), PatternWaiters(), list[str]()
    for watcher, prefixes in {
        "all": [""],
        "rooms": ["room:", "room:g"],
        "green": ["room:green"],
        "no": ["x", "rooms"],
    }.items():
        waiters.put(watcher, prefixes, lambda _, watcher=watcher: matched.append(watcher))  # type: ignore[misc]
    waiters.created(topic)
    assert sorted(matched) == ["all", "green", "rooms"]
    matched.clear()
    waiters.put("rooms", ["other"], lambda _: matched.append("rooms"))
    waiters.remove("all")
    waiters.created(topic)
    assert matched == ["green"]
    for watcher in ("rooms", "green", "no"):
        waiters.remove(watcher)
    assert not waiters._watchers
