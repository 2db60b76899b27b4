"""Schedules as a client meets them, on a real server that is stopped, killed, backed up and followed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api, eventually, succeeded

EVERY = {"record": {"data": {"do": "it"}, "tag": "t"}, "every_ms": 1000}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    directory: Path = tmp_path_factory.mktemp("schedules")
    server = ServerProcess(directory, {"data_dir": directory / "data"})
    client = Api(server.url)
    yield client
    client.close()
    server.stop()


def put(api: Api, name: str, **fields: Any) -> Any:
    api.put(fields.setdefault("topic", name))
    return succeeded(api.call("PUT", f"/v0/schedules/{name}", EVERY | fields))


def due(api: Api, topic: str) -> list[int]:
    return [row["meta"]["$schedule_at"] for row in api.read_all(topic)]


def test_schedule_is_created_shown_listed_and_deleted(api: Api) -> None:
    made = api.call("PUT", "/v0/schedules/none", EVERY | {"topic": "no-topic"})
    assert (made.status_code, made.json()["error"]["code"]) == (404, "topic_not_found")
    shown = put(api, "nightly", cron="30 2 * * *", every_ms=None, timezone="Europe/Berlin", catch_up="last")
    assert shown["created"] is True
    assert shown["record"] == {"data": {"do": "it"}, "tag": "t"}
    assert (shown["last_at"], shown["last_error"], shown["failures_total"]) == (None, None, 0)
    assert shown["next_at"] > time.time() * 1000
    assert (
        put(api, "nightly", cron="30 2 * * *", every_ms=None, timezone="Europe/Berlin", catch_up="last")["created"]
        is False
    )
    put(api, "nightly.2", cron="@daily", every_ms=None)
    page = api.get("/v0/schedules", prefix="nightly", page_size=1)
    assert [row["schedule"] for row in page["schedules"]] == ["nightly"]
    rest = api.get("/v0/schedules", prefix="nightly", cursor=page["next_cursor"])
    assert [row["schedule"] for row in rest["schedules"]] == ["nightly.2"]
    assert [row["schedule"] for row in api.get("/v0/schedules", topic="nightly.2")["schedules"]] == ["nightly.2"]
    assert succeeded(api.call("DELETE", "/v0/schedules/nightly"))["deleted"] is True
    assert succeeded(api.call("DELETE", "/v0/schedules/nightly"))["deleted"] is False
    api.refused(404, "schedule_not_found", "GET", "/v0/schedules/nightly")


def test_schedule_is_paused_and_resumed(api: Api) -> None:
    put(api, "halting")
    paused = succeeded(api.call("POST", "/v0/schedules/halting/pause", {}))
    assert (paused["paused"], paused["next_at"], paused["record"]) == (True, None, EVERY["record"])
    assert succeeded(api.call("POST", "/v0/schedules/halting/pause", {"paused": False}))["next_at"]
    api.refused(400, "invalid_request", "POST", "/v0/schedules/halting/pause", {"pause": True})
    api.refused(404, "schedule_not_found", "POST", "/v0/schedules/no/pause", {})


def test_ticks_append_while_the_server_runs(api: Api) -> None:
    put(api, "often", overlap="allow")
    found = eventually(lambda: due(api, "often"), lambda times: len(times) >= 2)
    assert found[1] - found[0] == 1000
    state = api.get("/v0/schedules/often")
    assert state["last_seq"] >= 2
    assert state["last_at"] in due(api, "often")
    metrics = api.http.get("/v0/metrics").text
    for name in ("last_seconds", "next_seconds", "failures_total"):
        assert f'topics_schedule_{name}{{schedule="often"}}' in metrics


def test_run_and_preview(api: Api) -> None:
    put(api, "yearly", cron="@yearly", every_ms=None)
    assert succeeded(api.call("POST", "/v0/schedules/yearly/run"))["seq"] == 1
    times = succeeded(api.call("POST", "/v0/schedules/yearly/preview", {"after": 0}))["times"]
    assert [row["local"][:10] for row in times] == [f"{year}-01-01" for year in range(1971, 1981)]
    spring = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "after": 1774659600000}
    times = succeeded(api.call("POST", "/v0/schedules/none/preview", spring))["times"]
    assert [row["local"] for row in times[:2]] == ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00"]
    api.refused(404, "schedule_not_found", "POST", "/v0/schedules/none/preview", {})
    api.refused(404, "schedule_not_found", "POST", "/v0/schedules/none/run")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cron": "* * * * *"}, "cron"),
        ({"every_ms": 10}, "every_ms"),
        ({"every_ms": None, "cron": "nonsense"}, "cron"),
        ({"every_ms": None, "cron": "@daily", "timezone": "Nowhere"}, "timezone"),
        ({"overlap": "skip"}, "overlap"),
        ({"jitter_ms": 5000}, "jitter_ms"),
        ({"starts_at": 2**60}, "starts_at"),
        ({"record": {"tag": "t"}}, "record.data"),
        ({"cronn": "@daily"}, "cronn"),
    ],
)
def test_invalid_requests_name_their_field(api: Api, fields: dict[str, Any], field: str) -> None:
    api.put("refused")
    answer = api.call("PUT", "/v0/schedules/refused", EVERY | {"topic": "refused"} | fields)
    assert (answer.status_code, answer.json()["error"]["detail"]["field"]) == (400, field)


def test_schedule_with_a_record_that_does_not_match_the_schema_is_refused(api: Api) -> None:
    schema = {"type": "object", "properties": {"do": {"type": "string"}}}
    topic = {"schema": schema, "compatibility": "none"}
    api.put("strict", **topic)
    wrong = EVERY | {"topic": "strict", "record": {"data": {"do": 5}}}
    error = api.refused(400, "schema_violation", "PUT", "/v0/schedules/strict", wrong)
    assert error["detail"] == {"record": 0, "path": "data.do", "rule": "properties/do/type"}
    api.refused(404, "schedule_not_found", "GET", "/v0/schedules/strict")
    api.put("strict", schema_mode="warn")
    assert succeeded(api.call("PUT", "/v0/schedules/lax", wrong))["created"]
    api.put("strict", schema_mode="reject")
    succeeded(api.call("PUT", "/v0/schedules/strict", EVERY | {"topic": "strict"}))
    api.put("strict", schema={"type": "integer"}, compatibility="none")
    succeeded(api.call("POST", "/v0/schedules/strict/run"))
    assert "it" in [row["data"]["do"] for row in api.read_all("strict")], "a tick is not checked"


def test_number_of_schedules_is_limited(start_server: StartServer) -> None:
    client = Api(start_server(max_schedules=1).url)
    put(client, "one")
    put(client, "one", record={"data": 2})
    client.put("two")
    client.refused(429, "throttled", "PUT", "/v0/schedules/two", EVERY | {"topic": "two"})
    client.close()


@pytest.mark.parametrize(
    "after_ms", [(1, 996), pytest.param((*range(20), *range(970, 1000)), marks=pytest.mark.torture)], ids=len
)
def test_killed_server_has_each_tick_once(tmp_path: Path, after_ms: tuple[int, ...]) -> None:
    """Kill the server so long after a tick, each time. The moment of the kill is the test, so this sleeps."""
    settings = {"data_dir": tmp_path / "data"}
    server = ServerProcess(tmp_path, settings)
    client = Api(server.url)
    client.put("sure", durability="fsync", idempotency_window_ms=0)
    first = put(client, "sure", catch_up="all", topic="sure")["next_at"]
    for wait_ms in after_ms:
        target = first + ((int(time.time() * 1000) - first) // 1000 + 1) * 1000 + wait_ms
        time.sleep(max(target / 1000 - time.time(), 0))
        server.kill()
        client.close()
        server = ServerProcess(tmp_path, settings)
        client = Api(server.url)
        found = eventually(
            lambda client=client: due(client, "sure"), lambda times, upto=target: bool(times) and times[-1] > upto
        )
        assert found == list(range(first, found[-1] + 1, 1000)), f"killed {wait_ms} ms after a tick"
    client.close()
    server.stop()
