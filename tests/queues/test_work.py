"""`/work`: jobs that are pushed, never more than the worker can hold, and given back when the connection ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.contract.api import Api, eventually
from tests.queues.test_http import claim, verb

Open = Callable[..., "Stream"]


class Stream:
    """One open connection, read event by event."""

    def __init__(self, api: Api, topic: str, **query: Any) -> None:
        self._http = httpx.Client(base_url=api.http.base_url, timeout=20, trust_env=False, verify=False)
        self._request = self._http.stream("GET", f"/v0/topics/{topic}/work", params=query)
        self.answer = self._request.__enter__()
        self._lines = self.answer.iter_lines()

    def next(self) -> tuple[str, Any]:
        """The next event that is no comment: its name and its data."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line and "event" in fields:
                return fields["event"], json.loads(fields["data"])
            name, found, value = line.partition(": ")
            if found and name:
                fields[name] = value
        raise AssertionError("the stream ended")

    def job(self) -> Any:
        event, data = self.next()
        assert event == "job", data
        return data

    def close(self) -> None:
        self.answer.close()
        self._http.close()


@pytest.fixture
def work(api: Api, topic: str) -> Iterator[Open]:
    streams: list[Stream] = []

    def open_stream(**query: Any) -> Stream:
        streams.append(Stream(api, topic, **query))
        return streams[-1]

    api.put(topic, type="queue")
    yield open_stream
    for stream in streams:
        stream.close()


def in_flight(api: Api, topic: str) -> int:
    return int(api.state(topic)["queue"]["in_flight"])


def test_jobs_are_pushed_up_to_max_and_an_ack_makes_room(api: Api, topic: str, work: Open):
    api.append(topic, [{"data": n, "tag": "t", "meta": {"m": n}} for n in range(4)])
    stream = work(node="w", max=2, lease_ms=30_000)
    assert stream.answer.headers["content-type"].startswith("text/event-stream")
    first, second = stream.job(), stream.job()
    assert first.keys() == {"topic", "$seq", "lease_id", "deadline", "deliveries", "$ts", "$tag", "data", "meta"}
    assert (first["topic"], first["$seq"], second["$seq"]) == (topic, 1, 2)
    assert in_flight(api, topic) == 2
    verb(api, topic, "ack", node="w", seqs=[1], lease_ids=[first["lease_id"]])
    assert stream.job()["$seq"] == 3
    verb(api, topic, "nack", node="w", seqs=[2], delay_ms=0)
    assert (again := stream.job())["$seq"] == 2
    assert again["deliveries"] == 2
    assert in_flight(api, topic) == 2


def test_a_stream_that_waits_gets_a_job_when_one_is_written(api: Api, topic: str, work: Open):
    stream = work(node="w")
    api.write(topic, "x")
    assert stream.job()["data"] == "x"


def test_a_job_comes_again_when_its_lease_runs_out(api: Api, topic: str, work: Open):
    api.write(topic, "x")
    stream = work(node="w", lease_ms=100)
    assert [stream.job()["deliveries"] for _ in range(2)] == [1, 2]


def test_a_connection_that_ends_gives_back_its_own_jobs_only(api: Api, topic: str, work: Open):
    api.write(topic, 1, 2, 3)
    claim(api, topic, node="w", lease_ms=60_000)
    stream = work(node="w", max=2, lease_ms=60_000)
    assert [stream.job()["$seq"], stream.job()["$seq"]] == [2, 3]
    stream.close()
    eventually(lambda: in_flight(api, topic), lambda n: n == 1)
    assert [job["$seq"] for job in claim(api, topic, node="x", max=9)["claimed"]] == [2, 3]


def test_streams_and_polls_share_a_cohort(api: Api, topic: str, work: Open):
    api.put(topic, claim_jitter_ms=400)
    stream = work(node="s", max=6, lease_ms=60_000)
    api.append(topic, [{"data": n} for n in range(6)])
    polled = claim(api, topic, node="p", max=6, lease_ms=60_000)
    assert polled["count"] == 3
    assert len({stream.job()["$seq"] for _ in range(3)} | {job["$seq"] for job in polled["claimed"]}) == 6


def test_a_queue_that_is_deleted_ends_the_stream_with_an_error(api: Api, topic: str, work: Open):
    stream = work(node="w")
    api.drop(topic)
    event, data = stream.next()
    assert (event, data["code"]) == ("error", 409)
    with pytest.raises(AssertionError, match="ended"):
        stream.next()


def test_what_cannot_be_opened(api: Api, topic: str, work: Open):
    path = f"/v0/topics/{topic}/work"
    api.refused(400, "invalid_request", "GET", path)
    api.refused(400, "invalid_request", "GET", path, params={"node": "w", "max": "many"})
    api.refused(400, "invalid_request", "GET", path, params={"node": "x" * 200})
    api.refused(406, "not_acceptable", "GET", path, params={"node": "w"}, headers={"accept": "application/json"})


def test_a_slot_is_free_again_when_its_stream_has_ended(start_server: Any, connect: Any):
    api: Api = connect(start_server(max_sse_connections=1))
    api.put("q", type="queue")
    first = Stream(api, "q", node="a")
    error = api.refused(429, "throttled", "GET", "/v0/topics/q/work", params={"node": "b"})
    assert error["detail"]["limit"] == "max_sse_connections"
    first.close()
    second = eventually(lambda: Stream(api, "q", node="b"), lambda stream: stream.answer.status_code == 200)
    second.close()
