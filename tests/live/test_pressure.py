"""Behaviour under pressure: what the server delays or refuses, and what it does not."""

import itertools
import time
from contextlib import closing

import pytest
from websockets.sync.client import connect

from tests.contract.api import Api, Background
from tests.live.events import Events, wait_for
from tests.live.inside import Inside
from topics.server.loop.throttle import SAMPLES, PressureStep

REFUSE_MS = 200
STEP_MS = {PressureStep.COALESCE: 15, PressureStep.STRETCH: 40, PressureStep.PAUSE: 100, PressureStep.REFUSE: 450}


@pytest.fixture
def inside():
    server = Inside(pressure_lag_ms=REFUSE_MS)
    yield server
    server.stop()


@pytest.fixture
def api(inside):
    client = Api(inside.url)
    yield client
    client.close()


def climb(inside, step):
    inside.lag(*[STEP_MS[step]] * SAMPLES)
    assert inside.call(lambda: inside.app.services.throttle.pressure.step) is step


def calm(inside):
    inside.lag(*[0] * SAMPLES)
    assert not inside.app.services.throttle.pressed


def watch(inside, api, *names):
    path = api.call("POST", "/v0/watch", {"topics": {name: {} for name in names}}).json()["stream_url"]
    events = Events(inside.url, path)
    events.expect(*["caught-up"] * len(names))
    return events


def test_refused_request_gets_a_retry_time(inside, api):
    api.write("a", 1)
    climb(inside, PressureStep.REFUSE)
    for path, body in (("/v0/topics/a", {"records": [{"data": 1}]}), ("/v0/topics/a/diff", {})):
        answer = api.call("POST", path, body)
        assert answer.status_code == 429
        retry_ms = answer.json()["error"]["detail"]["retry_after_ms"]
        assert 500 <= retry_ms <= 5000
        assert int(answer.headers["retry-after"]) == -(-retry_ms // 1000)
    assert api.state("a")["head_seq"] == 1
    calm(inside)
    api.write("a", 2)


def test_metrics_show_the_step_and_the_lag(inside, api):
    climb(inside, PressureStep.PAUSE)
    shown = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    assert shown["topics_pressure_step"] == 3
    assert shown["topics_loop_lag_ms"] == STEP_MS[PressureStep.PAUSE]
    calm(inside)
    shown = api.call("GET", "/v0/metrics", headers={"accept": "application/json"}).json()
    assert (shown["topics_pressure_step"], shown["topics_loop_lag_ms"]) == (0, 0)


def test_trusted_write_passes_and_reports_its_wait(inside, api):
    climb(inside, PressureStep.REFUSE)
    written = api.write("a", 1, disable_backpressure=True)
    assert written["performance"]["throttle_wait_ms"] >= 5
    calm(inside)
    assert api.write("a", 1)["performance"]["throttle_wait_ms"] == 0


def test_commits_are_gathered_before_requests_are_refused(inside, api):
    api.put("a")
    climb(inside, PressureStep.STRETCH)
    assert api.write("a", 1)["performance"]["throttle_wait_ms"] >= 1
    assert api.diff("a")["head_seq"] == 1


def test_pushes_are_gathered_into_fewer_frames(inside, api):
    api.put("a")
    with watch(inside, api, "a") as events:
        climb(inside, PressureStep.COALESCE)
        for n in range(3):
            api.write("a", n)
        seen = []
        while len(seen) < 3:
            seen += events.next().seqs
        assert seen == [1, 2, 3]


def test_watchers_of_paused_topics_are_notified(inside, api):
    api.put("low", priority=-20)
    api.put("high", priority=10)
    with watch(inside, api, "low", "high") as events:
        climb(inside, PressureStep.PAUSE)
        api.write("low", 1)
        api.write("high", 1)
        received = [events.next(), events.next()]
        advice = next(frame for frame in received if frame.event == "error")
        assert advice.data["code"] == 429
        assert advice.data["topics"] == ["low"]
        assert advice.data["retry_after_ms"] >= 500
        assert next(frame for frame in received if frame.event == "record").data["topic"] == "high"
        assert api.state("low")["effective_priority"] <= 0
        calm(inside)
        assert events.next().data["topic"] == "low"


def test_waiting_raises_a_paused_topic_under_pressure(inside, api):
    api.put("low", priority=-20)
    with watch(inside, api, "low") as events:
        climb(inside, PressureStep.PAUSE)
        api.write("low", 1)
        events.expect("error")
        wait_for(lambda: api.state("low")["effective_priority"] >= 0)
        inside.lag(STEP_MS[PressureStep.PAUSE])  # the next sample
        assert events.next().seqs == [1]


def test_websocket_is_refused_and_notified_like_http(inside, api):
    api.put("low", priority=-1000)
    with connect(inside.url.replace("http", "ws") + "/v0/ws", proxy=None) as ws:
        ws.send('{"op":"subscribe","topic":"low"}')
        assert "subscribed" in ws.recv(5)
        assert "caught_up" in ws.recv(5)
        climb(inside, PressureStep.REFUSE)
        ws.send('{"op":"publish","topic":"low","request_id":1,"records":[{"data":1}]}')
        assert '"throttled"' in ws.recv(5)
        ws.send('{"op":"publish","topic":"low","request_id":2,"records":[{"data":1}],"disable_backpressure":true}')
        received = [ws.recv(5), ws.recv(5)]
        assert any('"ack"' in each for each in received)
        assert any('"topics":["low"]' in each for each in received)


class Listener:
    """Collects records of one topic and their latencies until it has enough."""

    def __init__(self, inside, name, wanted):
        self.seqs: list[int] = []
        self.waits_s: list[float] = []
        self._api = Api(inside.url)
        self._events = watch(inside, self._api, name)
        self._work = Background(lambda: self._listen(wanted))

    def _listen(self, wanted):
        while len(self.seqs) < wanted:
            frame = self._events.next()
            for record in frame.data["records"] if frame.event == "record" else ():
                self.seqs.append(record["$seq"])
                self.waits_s.append(time.time() - record["data"])

    def median_wait_s(self):
        self._work.result()
        self._events.close()
        self._api.close()
        return sorted(self.waits_s)[len(self.waits_s) // 2]


def test_lag_delays_low_topics_and_loses_nothing():
    """Every turn of the loop takes 60 ms longer while both topics are written to."""
    inside = Inside(pressure_lag_ms=100)
    writes = 8
    with closing(Api(inside.url)) as writer:
        writer.put("low", priority=-100)
        writer.put("high", priority=900)
        low, high = Listener(inside, "low", writes), Listener(inside, "high", writes)
        inside.keep_busy(60)
        wait_for(lambda: inside.app.services.throttle.pressure.step >= PressureStep.PAUSE)
        for _, name in itertools.product(range(writes), ("low", "high")):
            writer.write(name, time.time(), disable_backpressure=True)
        assert high.median_wait_s() < low.median_wait_s()
        inside.keep_busy(0)
    assert low.seqs == high.seqs == list(range(1, writes + 1))
    inside.stop()
