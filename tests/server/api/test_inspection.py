"""The index, the rights of a key, samples and the timeline, over HTTP."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import topics
from tests.conftest import ServerProcess, StartServer
from tests.contract.api import Api, eventually
from topics.server.loop import samples

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.fixture
def api(start_server: StartServer) -> Any:
    client = Api(start_server().url)
    yield client
    client.close()


def test_index_names_the_addresses_of_the_server(api: Api) -> None:
    index = api.get("/")
    assert (index["name"], index["console"], index["openapi"]) == ("topics", "/console", "/v0/openapi.json")
    for path in (index["openapi"], index["client"], index["health"], index["console"]):
        assert api.http.get(path).status_code == 200


def test_browser_is_sent_to_the_console_and_curl_is_not(api: Api) -> None:
    sent = api.http.get("/", headers=BROWSER)
    assert (sent.status_code, sent.headers["location"], sent.headers["vary"]) == (302, "/console", "accept")
    assert api.http.get("/", headers={"accept": "*/*"}).json()["console"] == "/console"


def test_files_of_the_console_are_strictly_confined(api: Api) -> None:
    page = api.http.get("/console")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    for path, kind in (("console.css", "text/css"), ("app.js", "text/javascript"), ("parts/dom.js", "text/javascript")):
        answer = api.http.get(f"/console/{path}")
        assert answer.headers["content-type"].startswith(kind)
        again = api.http.get(f"/console/{path}", headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    ["nothing.js", "..%2fapp.py", "%2e%2e%2f%2e%2e%2fconfig.py", "parts", "parts/..%2fapp.js", "pages/%2fetc%2fpasswd"],
)
def test_a_name_that_is_no_file_of_the_console_is_not_found(api: Api, path: str) -> None:
    assert api.http.get(f"/console/{path}").status_code == 404


def test_console_can_be_turned_off(start_server: StartServer) -> None:
    server: ServerProcess = start_server(console="off")
    for path in ("/console", "/console/app.js", "/v0/samples"):
        assert httpx.get(server.url + path).status_code == 404
    assert httpx.get(server.url, headers=BROWSER).json()["console"] is None
    assert "/console" not in httpx.get(f"{server.url}/v0/openapi.json").json()["paths"]


def test_whoami_returns_the_rights_of_the_key(start_server: StartServer) -> None:
    server: ServerProcess = start_server(api_keys="secret-one:read+write:shop.|lab.,secret-two:admin")
    url = f"{server.url}/v0/whoami"
    one = httpx.get(url, headers={"authorization": "Bearer secret-one"}).json()
    assert (one["key"], one["scopes"], sorted(one["prefixes"])) == ("key1", ["read", "write"], ["lab.", "shop."])
    two = httpx.get(url, headers={"authorization": "Bearer secret-two"}).json()
    assert (two["key"], two["scopes"], two["prefixes"]) == ("key2", ["admin"], [])
    assert httpx.get(url).status_code == 401


def test_whoami_without_keys_grants_everything(api: Api) -> None:
    who = api.get("/v0/whoami")
    assert (who["key"], who["scopes"], who["prefixes"]) == (None, ["read", "write", "delete", "admin"], [])


def test_samples_count_appends_reads_losses_and_jobs(api: Api) -> None:
    api.put("capped", cap_records=10)
    api.write("capped", *range(25))
    api.diff("capped", from_seq=0)
    api.put("jobs", type="queue")
    api.write("jobs", 1, 2)
    [job, _] = api.call("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 2}).json()["claimed"]
    api.call("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [job["$seq"]]})
    seen = eventually(lambda: api.get("/v0/samples"), lambda answer: answer["rows"])
    sums = dict(zip(seen["columns"], map(sum, zip(*seen["rows"], strict=True)), strict=True))
    assert {name: sums[name] for name in ("appended", "read", "lost_cap", "claimed", "acked")} == {
        "appended": 27, "read": 10, "lost_cap": 15, "claimed": 2, "acked": 1,
    }  # fmt: skip
    last = dict(zip(seen["columns"], seen["rows"][-1], strict=True))
    assert (last["records"], last["topics"]) == (11, 2)
    assert last["resident_bytes"] > 1 << 20
    assert (seen["interval_ms"], seen["capacity"]) == (samples.INTERVAL_MS, samples.CAPACITY)
    assert api.get("/v0/samples", after=seen["rows"][-1][0] + 60_000)["rows"] == []


def test_samples_of_queues_and_topics_need_a_key_that_covers_them(start_server: StartServer) -> None:
    server = start_server(api_keys="all,some:read:shop.")
    with httpx.Client(base_url=server.url, headers={"authorization": "Bearer all"}) as admin:
        for name in ("shop.mail", "lab.mail"):
            assert admin.put(f"/v0/topics/{name}", json={"type": "queue"}).is_success
        assert admin.put("/v0/topics/shop.log", json={}).is_success
    with httpx.Client(base_url=server.url, headers={"authorization": "Bearer some"}) as some:
        seen = some.get("/v0/samples", params={"queue": "shop.mail"}).json()
        assert (seen["interval_ms"], seen["capacity"], seen["rows"]) == (15_000, 240, [])
        assert seen["columns"] == ["ts", "ready", "in_flight", "delayed", "finished", "age_ms"]
        refused = {name: some.get("/v0/samples", params={"queue": name}) for name in ("lab.mail", "shop.log", "shop.x")}
        assert some.get("/v0/samples", params={"topic": "lab.mail"}).json()["error"]["code"] == "forbidden"
        assert some.get("/v0/samples", params={"topic": "shop.log"}).json()["columns"] == ["ts", "head", "bytes"]
        assert some.get("/v0/samples", params={"readers": "true"}).json()["columns"] == ["ts"]
    assert [answer.json()["error"]["code"] for answer in refused.values()] == [
        "forbidden", "not_a_queue", "topic_not_found",
    ]  # fmt: skip


def test_timeline_has_exact_ranges_and_totals(api: Api) -> None:
    api.put("t", cap_records=50)
    api.write("t", *range(100))
    api.delete("t", seqs=[60, 61, 90])
    seen = api.get("/v0/topics/t/timeline")
    assert [(one["from_seq"], one["to_seq"], one["state"]) for one in seen["ranges"]] == [
        (1, 50, "cap"), (51, 59, "live"), (60, 61, "deleted"), (62, 89, "live"), (90, 90, "deleted"), (91, 100, "live"),
    ]  # fmt: skip
    assert (seen["live"], seen["deleted"], seen["lost"], seen["resolution"]) == (47, 3, 50, 1)
    part = api.get("/v0/topics/t/timeline", from_seq=60, to_seq=62)
    assert [(one["from_seq"], one["to_seq"]) for one in part["ranges"]] == [(60, 61), (62, 62)]
    coarse = api.get("/v0/topics/t/timeline", ranges=4)
    assert (coarse["resolution"], len(coarse["ranges"])) == (25, 3)
    assert coarse["ranges"][1] == {"from_seq": 51, "to_seq": 75, "state": "merged", "live": 23, "deleted": 2, "lost": 0}


def test_timeline_refuses_a_window_that_ends_before_it_begins(api: Api) -> None:
    api.write("t", 1)
    error = api.refused(400, "invalid_request", "GET", "/v0/topics/t/timeline?from_seq=5&to_seq=4")
    assert error["detail"]["field"] == "to_seq"


def test_list_of_topics_has_details_on_request(api: Api) -> None:
    api.put("t", cap_records=2)
    api.write("t", 1, 2, 3)
    [plain] = api.get("/v0/topics")["topics"]
    assert "config" not in plain
    [row] = api.get("/v0/topics", details="true")["topics"]
    assert (row["config"]["cap_records"], row["lost"]) == (2, 1)
    assert row["last_write_ts"] > 0


def test_history_of_a_topic_comes_from_its_log(api: Api) -> None:
    """Rows reach back to the time before the first record. Records that a cap evicted count; deleted ones as well."""
    start = time.time_ns() // 1_000_000
    api.put("prices", cap_records=10)
    api.write("prices", *range(25))
    api.call("POST", "/v0/topics/prices/delete", {"seqs": [20]})
    seen = api.get("/v0/samples", topic="prices", from_ts=start - 60_000, to_ts=start + 60_000, points=12)
    assert (seen["columns"], seen["interval_ms"], len(seen["rows"])) == (["ts", "head", "bytes"], 10_000, 13)
    assert [row[0] for row in seen["rows"]] == list(range(start - 60_000, start + 60_001, 10_000))
    heads = [row[1] for row in seen["rows"]]
    assert heads == sorted(heads)
    assert heads[0] < 25 == heads[-1]
    assert seen["rows"][0][2] == 0 < seen["rows"][-1][2]
    refused = api.call("GET", f"/v0/samples?topic=prices&from_ts={start}&to_ts={start}")
    assert (refused.status_code, refused.json()["error"]["detail"]["field"]) == (400, "to_ts")
    assert api.call("GET", "/v0/samples?topic=nowhere").status_code == 404


def test_files_of_the_console_stay_small() -> None:
    """The budget of the console: all of its files, as they are stored and served."""
    folder = Path(topics.__file__).parent / "server" / "console"
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 250_000
