"""SQL over HTTP, and the figures and the switch of a replica: commands in processes beside a real server."""

import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess, StartServer
from tests.faults.test_standby_processes import begin, running, takes_writes, wait_for
from topics.client import Topics
from topics.errors import Code, TopicsError
from topics.model.inspection import SqlRequest
from topics.server.api.handlers import commands
from topics.server.loop.processes import MAX_QUERIES, MAX_WAITING, Processes

assert running  # a fixture
LONG = "select count(*) from range(1000000000000) a where hash(a.range) = 1"
WAIT_S = 120.0


def query(server: ServerProcess, text: str, key: str | None = None, **fields: Any) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.post(f"{server.url}/v0/sql", json={"query": text, **fields}, headers=headers, timeout=WAIT_S)


def children(server: ServerProcess) -> list[str]:
    """Return the processes of queries: a dead one has no command line."""
    found = Path(f"/proc/{server.process.pid}").glob("task/*/children")
    pids = [pid for path in found for pid in path.read_text().split()]
    return [pid for pid in pids if b"sql" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_query_has_columns_and_rows_and_is_bounded(start_server: StartServer) -> None:
    pytest.importorskip("duckdb")
    server = start_server()
    with Topics(server.url) as topics:
        topics.append_many("orders", [{"data": {"sku": f"s{n % 2}", "qty": n}} for n in range(10)])
        found = topics.sql("select data.sku as sku, sum(data.qty) as sold from orders group by 1 order by 1")
        assert (found.columns, found.rows, found.more) == (["sku", "sold"], [["s0", 20], ["s1", 25]], False)
    some = query(server, "select seq, seq from orders order by 1", limit=3).json()
    assert (some["columns"], some["rows"], some["more"]) == (["seq", "seq"], [[1, 1], [2, 2], [3, 3]], True)
    assert query(server, "select seq from orders where seq > 99").json()["rows"] == []
    large = query(server, "select repeat('x', 100000) as x from range(9000)", limit=9000)
    assert large.json()["more"] is True
    assert 3_900_000 < len(large.content) < 4_400_000
    wrong = query(server, "select nothing from orders")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (422, "query_failed")
    assert "nothing" in wrong.json()["error"]["message"]
    for body in ({"query": " "}, {"query": "select 1", "limit": 0}, {"query": "select 1", "limit": 10_001}, {}):
        assert httpx.post(f"{server.url}/v0/sql", json=body).status_code == 400


def test_query_that_cannot_start_is_answered_and_the_next_one_works(start_server: StartServer) -> None:
    pytest.importorskip("duckdb")
    server = start_server()
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        client.get("/v0/health")
        used = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        before = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + 2, before[1]))
        refused = client.post("/v0/sql", json={"query": "select 1"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "storage_unavailable")
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, before)
        assert client.post("/v0/sql", json={"query": "select 1"}).json()["rows"] == [[1]]


def test_query_has_the_rights_of_its_key(start_server: StartServer) -> None:
    pytest.importorskip("duckdb")
    server = start_server(api_keys="root,page:read:public.,writer:write")
    with Topics(server.url, token="root") as topics:
        topics.append("public.news", 1)
        topics.append("secret.plans", 1)
    assert query(server, 'select seq from "public.news"', "page").json()["rows"] == [[1]]
    for text in ('select * from "secret.plans"', "select * from read_text('/etc/hostname')"):
        assert query(server, text, "page").json()["error"]["code"] == "query_failed"
    assert query(server, "select 1", "writer").json()["error"]["detail"] == {"scope": ["read"]}
    assert query(server, "select 1", "stranger").status_code == 401
    assert query(server, "select 1").status_code == 401


def test_more_queries_than_run_at_once_wait_and_then_are_refused(start_server: StartServer) -> None:
    pytest.importorskip("duckdb")
    server = start_server()
    most = MAX_QUERIES + MAX_WAITING
    with httpx.Client(timeout=WAIT_S, limits=httpx.Limits(max_connections=None)) as client:
        with ThreadPoolExecutor(most) as pool:
            asked = [pool.submit(client.post, f"{server.url}/v0/sql", json={"query": LONG}) for _ in range(most)]
            wait_for(lambda: query(server, " select 1").json().get("error", {}).get("code") == "throttled")
            assert len(children(server)) <= MAX_QUERIES
            server.process.send_signal(signal.SIGTERM)
            assert {one.result().json()["error"]["code"] for one in asked} == {"shutting_down"}
    wait_for(lambda: server.process.poll() is not None)
    assert server.process.poll() == 0


def test_query_ends_when_its_client_leaves(start_server: StartServer) -> None:
    pytest.importorskip("duckdb")
    server = start_server()
    left = threading.Event()

    def leave() -> None:
        with httpx.Client(timeout=httpx.Timeout(5, read=3)) as client, pytest.raises(httpx.ReadTimeout):
            client.post(f"{server.url}/v0/sql", json={"query": LONG})
        left.set()

    thread = threading.Thread(target=leave)
    thread.start()
    wait_for(lambda: children(server))
    assert left.wait(WAIT_S)
    thread.join()
    wait_for(lambda: not children(server))
    assert query(server, "select 1").json()["rows"] == [[1]]


def test_server_that_cannot_query_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = SimpleNamespace(processes=Processes(lambda: None))
    services: Any = SimpleNamespace(check_ready=lambda: None, looks=looks)
    call: Any = SimpleNamespace(body=lambda: SqlRequest("select 1"))
    for is_installed, part in ((False, "[sql]"), (True, "--url")):
        monkeypatch.setattr(commands, "is_installed", lambda name, found=is_installed: found)
        with pytest.raises(TopicsError) as refused:
            commands.run_sql(services, call)
        assert refused.value.code is Code.SQL_UNAVAILABLE
        assert part in str(refused.value)


@pytest.mark.parametrize("asks_standby", [False, True])
def test_replica_is_shown_and_its_standby_promoted(
    running: list[ServerProcess], tmp_path: Path, *, asks_standby: bool
) -> None:
    pytest.importorskip("obstore")
    writer = begin(running, tmp_path, "a", takeover_after_ms=60_000)
    with Topics(writer.url) as topics:
        topics.put_topic("sure", durability="replicated")
        topics.append("sure", 1)
        standby = begin(running, tmp_path, "b", standby=True, takeover_after_ms=60_000)
        [one] = wait_for(lambda: topics.replica().followers, WAIT_S)
        assert (one.takes_over, one.address) == (True, standby.url)
        found = wait_for(lambda: topics.replica().stored and topics.replica(), WAIT_S)
        assert found.role == "writer"
        assert found.stored.objects > 0
        assert 0 < found.stored.oldest_ms <= time.time() * 1000
        with pytest.raises(TopicsError, match="knows the standbys"):
            topics.promote("nobody")
    with Topics(standby.url) as topics:
        seen = topics.replica()
        assert (seen.role, seen.writer, [each.name for each in seen.followers]) == ("standby", writer.url, [one.name])
    with Topics((standby if asks_standby else writer).url, retries=0) as topics:
        assert topics.promote(one.name).standby == one.name
    wait_for(lambda: takes_writes(standby), WAIT_S)
    with Topics(standby.url) as topics:
        assert topics.replica().role == "writer"
        assert [record.data for record in topics.read("sure")] == [1]


def test_server_without_a_replica_says_so(start_server: StartServer) -> None:
    with Topics(start_server().url) as topics:
        found = topics.replica()
        assert (found.role, found.stored, found.followers) == ("none", None, [])
        with pytest.raises(TopicsError, match="no standby follows"):
            topics.promote("a")
