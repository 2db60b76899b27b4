"""Records of `memory` topics come back after a kill without holding up the start; no request sees a part of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api, eventually, now_ms
from tests.contract.test_metrics import Scrape
from tests.faults.written import killed

HELD_START = str(Path(__file__).parents[2] / "faults" / "held_start.py")
TOPICS = [f"m{number}" for number in range(5)]
RECORDS = 100


def test_memory_topics_come_back_after_a_kill_and_go_on_where_they_were(start_server: StartServer, tmp_path) -> None:
    settings = {"data_dir": tmp_path / "data"}
    server = start_server(**settings)
    with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
        for name in ("a", "b", "c"):
            client.put(f"/v0/topics/{name}", json={"durability": "memory", "cap_records": 500})
            for first in range(0, 300, 3):
                records = [{"data": first + at, "tag": "t"} for at in range(3)]
                assert client.post(f"/v0/topics/{name}", json={"records": records}).is_success
        client.post("/v0/topics/b/delete", json={"before_seq": 101})
    server.kill()

    again = start_server(**settings)
    with httpx.Client(base_url=again.url, timeout=30, trust_env=False) as client:
        written = client.post("/v0/topics/a", json={"records": [{"data": "new"}]}).json()
        assert written["first_seq"] == 301
        state = client.get("/v0/topics/b").json()
        assert (state["head_seq"], state["count"], state["earliest_seq"]) == (300, 200, 101)
        answer = client.post("/v0/topics/c/diff", json={"limit": 1000}).json()
        assert [record["data"] for record in answer["records"]] == list(range(300))
        assert answer["tombstone"] is None
    again.kill()

    third = start_server(**settings)
    with httpx.Client(base_url=third.url, timeout=30, trust_env=False) as client:
        counts = {name: client.get(f"/v0/topics/{name}").json()["count"] for name in ("a", "b", "c")}
        assert counts == {"a": 301, "b": 200, "c": 300}


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Api]:
    """A server that is ready and brings back no record of a `memory` topic unless a request makes it."""
    with killed(tmp_path / "data", now_ms=now_ms()) as writer:
        writer.put("source", durability="fsync")
        for name in TOPICS:
            writer.put(name, durability="memory")
        for number in range(RECORDS):
            for name in TOPICS:
                writer.append(name, str(number))
    server = ServerProcess(
        tmp_path / "server", {"data_dir": tmp_path / "data"}, program=(HELD_START,), variables={"HOLD_REPLAY": "1"}
    )
    with contextlib.closing(Api(server.url)) as api:
        try:
            yield api
        finally:
            server.kill()


def test_the_list_shows_every_record_right_after_a_start(waiting: Api) -> None:
    listed = {row["topic"]: (row["head_seq"], row["count"]) for row in waiting.get("/v0/topics")["topics"]}
    assert listed == dict.fromkeys(TOPICS, (RECORDS, RECORDS)) | {"source": (0, 0)}


def test_metrics_show_every_record_right_after_a_start(waiting: Api) -> None:
    scrape = Scrape(waiting)
    assert scrape["topics_records_live"] == RECORDS * len(TOPICS)
    assert {scrape.samples["topics_topic_head_seq", name] for name in TOPICS} == {RECORDS}


def test_a_router_into_a_topic_overwrites_nothing_right_after_a_start(waiting: Api) -> None:
    dest = TOPICS[-1]
    put(waiting, "r", source="source", dest=dest)
    waiting.write("source", "copied")
    eventually(lambda: waiting.get("/v0/routers/r"), lambda router: router["forwarded_total"] == 1)
    records = waiting.read_all(dest)
    assert [record["data"] for record in records] == [*range(RECORDS), "copied"]
    assert [record["$seq"] for record in records] == list(range(1, RECORDS + 2))


def test_a_router_out_of_a_topic_begins_at_its_head_right_after_a_start(waiting: Api) -> None:
    assert put(waiting, "r", source=TOPICS[0], dest="new")["cursor"] == RECORDS


def test_a_watched_pattern_brings_every_record_right_after_a_start(waiting: Api) -> None:
    session = waiting.call("POST", "/v0/watch", {"topics": {"m*": {"from_seq": 0}}}).json()
    assert {row["head_seq"] for row in session["topics"].values()} == {RECORDS}


def test_bulk_reads_and_archives_see_every_record_right_after_a_start(waiting: Api) -> None:
    lines = waiting.http.post(f"/v0/topics/{TOPICS[1]}/scan", json={}).text.splitlines()
    assert len([line for line in lines if '"$seq"' in line]) == RECORDS
    epoch = waiting.get("/v0/topics")["topics"][2]["epoch"]
    report = waiting.call("POST", f"/v0/topics/{TOPICS[2]}/archived", {"seq": RECORDS, "epoch": epoch}).json()
    assert report["archived_seq"] == RECORDS


def put(api: Api, name: str, **fields: Any) -> Any:
    answer = api.call("PUT", f"/v0/routers/{name}", fields)
    assert answer.is_success, answer.text
    return answer.json()
