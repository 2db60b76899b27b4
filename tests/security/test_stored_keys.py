"""Keys at run time, the audit topic, the right to create topics, and the limit on failed authentications."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import eventually
from tests.security.conftest import Caller
from tests.simulated.clock import SimClock
from topics.config import Settings
from topics.errors import Code, TopicsError
from topics.model.names import AUDIT
from topics.server.access.key_ring import WINDOW_MS, Failures

ROOT = "root-key"
RECORDS = {"records": [{"data": 1}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    process = ServerProcess(tmp_path_factory.mktemp("keys"), {"api_keys": f"{ROOT},reader:read,inner::in."})
    caller = Caller(process.port)
    yield caller
    caller.close()
    process.stop()


def created(server: Caller, name: str, key: str = ROOT, **wanted: Any) -> str:
    reply = server.send("POST", "/v0/keys", {"key": name, **wanted}, key=key)
    assert reply.status == 201, reply.text
    return str(reply.json["secret"])


def status(server: Caller, key: str, path: str = "/v0/topics") -> int:
    return server.send("GET", path, key=key).status


def test_key_has_its_rights_until_it_is_revoked(server: Caller):
    secret = created(server, "billing", scopes=["read"], names=["orders"], note="invoices")
    assert status(server, secret) == 200
    assert server.send("POST", "/v0/topics/orders", RECORDS, key=secret).status == 403
    listed = {row["key"]: row for row in server.send("GET", "/v0/keys", key=ROOT).json["keys"]}
    assert set(listed) >= {"key1", "key2", "key3", "billing"}
    assert (listed["billing"]["note"], listed["billing"]["created_by"]) == ("invoices", "key1")
    assert listed["billing"]["last_used_at"] > 0
    assert secret not in json.dumps(listed)
    assert server.send("POST", "/v0/keys", {"key": "billing"}, key=ROOT).status == 400
    one = server.send("POST", "/v0/tokens", {}, key=secret).json["token"]
    assert status(server, one) == 200
    assert server.send("DELETE", "/v0/keys/billing", key=ROOT).json["deleted"] is True
    assert [status(server, secret), status(server, one)] == [401, 401]
    assert server.send("DELETE", "/v0/keys/billing", key=ROOT).json["deleted"] is False


def test_rotation_has_an_overlap(server: Caller):
    first = created(server, "deploy")
    second = server.send("POST", "/v0/keys/deploy/rotate", {"overlap_ms": 700}, key=ROOT).json["secret"]
    assert [status(server, first), status(server, second)] == [200, 200]
    eventually(lambda: status(server, first), lambda found: found == 401)
    third = server.send("POST", "/v0/keys/deploy/rotate", {"overlap_ms": 0}, key=ROOT).json["secret"]
    assert [status(server, second), status(server, third)] == [401, 200]


def test_key_expires_with_its_streams(server: Caller):
    secret = created(server, "brief", ttl_ms=1200)
    server.send("PUT", "/v0/topics/watched", {}, key=ROOT)
    session = server.send("POST", "/v0/watch", {"topics": {"watched": {}}}, key=secret).json
    sock = server.connect()
    sock.sendall(f"GET {session['stream_url']} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {secret}\r\n\r\n".encode())
    text = b""
    while b'"code":401' not in text:
        piece = sock.recv(65_536)
        assert piece, text
        text += piece
    sock.close()
    assert status(server, secret) == 401


def test_key_manages_only_keys_within_its_rights(server: Caller):
    created(server, "wide")
    created(server, "in.narrow", key="inner", scopes=["read"])
    assert server.send("POST", "/v0/keys", {"key": "x", "prefixes": ["out."]}, key="inner").status == 403
    for method, path, body in (("DELETE", "/v0/keys/wide", None), ("POST", "/v0/keys/wide/rotate", {})):
        assert server.send(method, path, body, key="inner").status == 403
    seen = {row["key"] for row in server.send("GET", "/v0/keys", key="inner").json["keys"]}
    assert "wide" not in seen
    assert "in.narrow" in seen
    assert server.send("DELETE", "/v0/keys/key2", key=ROOT).status == 403, "a key of the settings"
    assert server.send("POST", "/v0/keys", {"key": "key9"}, key=ROOT).status == 400


def test_keys_survive_a_kill_and_a_checkpoint_and_are_stored_as_digests(start_server: StartServer, tmp_path: Path):
    settings = {"api_keys": ROOT, "data_dir": tmp_path / "data"}
    for kill in (True, False, True):
        running = start_server(**settings)
        caller = Caller(running.port)
        name = f"kept{len(list(tmp_path.iterdir()))}-{kill}-{running.port}"
        secret = created(caller, name, scopes=["read"])
        caller.close()
        running.kill() if kill else running.stop()
        again = start_server(**settings)
        caller = Caller(again.port)
        assert status(caller, secret) == 200
        caller.close()
        again.stop()
        files = [file.read_bytes() for file in (tmp_path / "data").rglob("*") if file.is_file()]
        assert any(name.encode() in data for data in files)
        assert not any(secret.encode() in data for data in files)


def test_server_without_keys_does_not_serve_a_directory_with_keys(start_server: StartServer, tmp_path: Path):
    running = start_server(api_keys=ROOT, data_dir=tmp_path / "data")
    caller = Caller(running.port)
    created(caller, "kept")
    caller.close()
    running.stop()
    env = {"PATH": os.environ["PATH"], "TOPICS_DATA_DIR": str(tmp_path / "data"), "TOPICS_PORT": "0"}
    command = [sys.executable, "-m", "topics", "serve"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "TOPICS_API_KEYS" in done.stderr
    opened = start_server(data_dir=tmp_path / "data", allow_insecure_no_auth="true")
    caller = Caller(opened.port)
    assert caller.send("GET", "/v0/topics").status == 200
    assert caller.send("POST", "/v0/keys", {"key": "x"}).status == 403, "a server without keys has none to manage"
    caller.close()


# --- the audit topic


def audited(server: Caller, key: str = ROOT) -> list[dict[str, Any]]:
    reply = server.send("POST", f"/v0/topics/{AUDIT}/diff", {"limit": 1000}, key=key)
    assert reply.status == 200, reply.text
    return [record["data"] for record in reply.json["records"]]


def test_changes_are_in_the_audit_topic(server: Caller):
    for method, path, body in (
        ("PUT", "/v0/topics/au", {"cap_records": 5}),
        ("PUT", "/v0/topics/au.q", {"type": "queue", "dead_letter": "au.dead", "max_deliveries": 1}),
        ("PUT", "/v0/routers/au.r", {"source": "au", "dest": "au.to"}),
        ("DELETE", "/v0/routers/au.r", None),
        ("PUT", "/v0/schedules/au.s", {"topic": "au", "record": {"data": 1}, "cron": "@yearly"}),
        ("DELETE", "/v0/schedules/au.s", None),
        ("POST", "/v0/topics/au.q", RECORDS),
        ("POST", "/v0/topics/au.q/claim", {"node": "w"}),
        ("POST", "/v0/topics/au.q/nack", {"node": "w", "seqs": [1]}),
        ("POST", "/v0/topics/au.q/redrive", {}),
        ("PUT", "/v0/topics/au/consumers/c", {"seq": 0}),
        ("DELETE", "/v0/topics/au/consumers/c", None),
        ("DELETE", "/v0/topics/au", None),
    ):
        reply = server.send(method, path, body, key=ROOT)
        assert reply.status in (200, 201), (path, reply.text)
    created(server, "au.key")
    server.send("POST", "/v0/keys/au.key/rotate", {}, key=ROOT)
    server.send("DELETE", "/v0/keys/au.key", key=ROOT)
    server.send("POST", "/v0/tokens/revoke", {"id": "au.token"}, key=ROOT)
    mine = [row for row in audited(server) if "au" in json.dumps([row["name"], row.get("key"), row.get("tokens")])]
    assert [row["what"] for row in mine] == [
        "configure topic", "configure topic", "put router", "drop router", "put schedule",
        "drop schedule", "redrive", "drop consumer", "drop topic", "create key", "rotate key", "revoke key",
        "revoke tokens",
    ]  # fmt: skip
    assert {(row["who"], row["from"]) for row in mine} == {("key1", "127.0.0.1")}
    assert mine[0]["config"]["cap_records"] == 5
    assert "tk_" not in json.dumps(mine)


def test_audit_topic_does_not_exist_before_the_first_change(start_server: StartServer):
    server = Caller(start_server(api_keys=f"{ROOT}:read+admin").port)
    reply = server.send("POST", f"/v0/topics/{AUDIT}/diff", {}, key=ROOT)
    server.close()
    assert (reply.status, reply.json["error"]["code"]) == (404, "topic_not_found")


def test_change_that_changes_nothing_is_not_audited(server: Caller):
    server.send("PUT", "/v0/topics/same", {"cap_records": 5}, key=ROOT)
    before = len(audited(server))
    server.send("PUT", "/v0/topics/same", {"cap_records": 5}, key=ROOT)
    server.send("DELETE", "/v0/topics/never", key=ROOT)
    assert server.send("PUT", "/v0/topics/same", {"type": "queue"}, key=ROOT).status == 409
    assert len(audited(server)) == before


def test_audit_topic_is_read_with_admin_and_written_by_no_client(server: Caller):
    server.send("PUT", "/v0/topics/any", {"cap_records": 7}, key=ROOT)
    path = f"/v0/topics/{AUDIT}"
    for key in ("reader", "inner"):
        for method, part, body in (("GET", "", None), ("POST", "/diff", {}), ("POST", "/scan", {})):
            assert server.send(method, path + part, body, key=key).status == 403, (key, part)
        assert server.send("POST", "/v0/watch", {"topics": {AUDIT: {}}}, key=key).status == 403
    for method, part, body in (
        ("POST", "", RECORDS), ("PUT", "", {}), ("DELETE", "", None), ("POST", "/delete", {"before_seq": 9}),
        ("POST", "/claim", {"node": "w"}), ("PUT", "/consumers/c", {"seq": 0}),
    ):  # fmt: skip
        assert server.send(method, path + part, body, key=ROOT).status in (403, 405), (method, part)
    for method, route, body in (
        ("PUT", "/v0/routers/leak", {"source": AUDIT, "dest": "leak"}),
        ("POST", "/v0/consumers", {"commits": [{"topic": AUDIT, "consumer": "c", "seq": 0}]}),
        ("POST", "/v0/topics/%24other", RECORDS),
    ):
        assert server.send(method, route, body, key=ROOT).status in (400, 403), route
    assert server.send("POST", f"{path.replace('$', '%24')}/diff", {}, key=ROOT).status == 200
    assert server.send("POST", "/v0/watch", {"topics": {AUDIT: {}}}, key=ROOT).status == 200
    listed = server.send("GET", "/v0/topics?page_size=1000", key=ROOT).json["topics"]
    assert AUDIT not in [row["topic"] for row in listed]
    assert AUDIT not in server.send("POST", "/v0/watch", {"topics": {"*": {}}}, key=ROOT).json["topics"]


# --- topics that nobody creates by mistake


@pytest.mark.parametrize(
    ("setting", "allowed", "refused"),
    [("none", [], ["new"]), ("orders,log.*", ["orders", "log.a"], ["orders2", "log"]), ("all", ["new"], [])],
)
def test_writes_create_only_what_the_setting_allows(
    start_server: StartServer, setting: str, allowed: list[str], refused: list[str]
):
    caller = Caller(start_server(auto_create=setting).port)
    for name in allowed:
        assert caller.send("POST", f"/v0/topics/{name}", RECORDS).status == 201
    for name in refused:
        for body in (RECORDS, RECORDS | {"create": True}):
            reply = caller.send("POST", f"/v0/topics/{name}", body)
            assert (reply.status, reply.json["error"]["code"]) == (404, "topic_not_found")
            assert "TOPICS_AUTO_CREATE" in reply.json["error"]["message"]
        assert caller.send("PUT", f"/v0/topics/{name}", {}).status == 201
        assert caller.send("POST", f"/v0/topics/{name}", RECORDS).status == 200
    caller.close()


def test_key_without_the_right_to_create_gets_a_near_name(start_server: StartServer):
    caller = Caller(start_server(api_keys=f"{ROOT},w:write+nocreate,in:rw+nocreate:in.").port)
    for name in ("orders", "in.jobs", "ordeal"):
        caller.send("PUT", f"/v0/topics/{name}", {}, key=ROOT)
    assert caller.send("POST", "/v0/topics/orders", RECORDS, key="w").status == 200
    for body in (RECORDS, RECORDS | {"create": True}):
        reply = caller.send("POST", "/v0/topics/ordrs", body, key="w")
        assert reply.status == 404
        assert reply.json["error"]["detail"]["near"][0] == "orders"
        assert "did you mean orders" in reply.json["error"]["message"]
    hidden = caller.send("POST", "/v0/topics/in.job", RECORDS, key="in")
    assert hidden.json["error"]["detail"]["near"] == ["in.jobs"]
    one = caller.send("POST", "/v0/tokens", {"create": False}, key=ROOT).json["token"]
    assert caller.send("POST", "/v0/topics/fresh", RECORDS, key=one).status == 404
    caller.close()


# --- guesses


def test_address_that_fails_too_often_is_refused_for_a_minute():
    clock = SimClock(ms=1_000_000)
    failures = Failures(clock, 3)
    error = TopicsError(Code.UNAUTHORIZED, "the API key is unknown")
    for _ in range(3):
        failures.check("203.0.113.9:5")
        failures.note("203.0.113.9:5", error)
    with pytest.raises(TopicsError) as caught:
        failures.check("203.0.113.9:6")
    assert (caught.value.code, caught.value.retry_after_ms) == (Code.THROTTLED, WINDOW_MS)
    failures.check("203.0.113.10:5")
    for _ in range(9):
        failures.note("127.0.0.1:5", error)
    failures.check("127.0.0.1:5")
    clock.advance(ms=WINDOW_MS)
    failures.check("203.0.113.9:5")
    assert (failures.total, failures.refused_total) == (12, 1)


def test_failed_authentications_are_counted_and_logged_without_the_secret(tmp_path: Path):
    running = ServerProcess(tmp_path, {"api_keys": ROOT})
    caller = Caller(running.port)
    for n in range(70):
        assert status(caller, f"guess-{n}") == 401, "an address of this machine may be a proxy"
    metrics = caller.send("GET", "/v0/metrics", key=ROOT).text
    assert "topics_auth_failures_total 70" in metrics
    lines = [line for line in map(json.loads, running.log().splitlines()) if line["event"] == "authentication_failed"]
    assert [line["failures"] for line in lines] == [1, 60]
    assert "guess" not in running.log()
    caller.close()
    running.stop()


def test_defaults_limit_guesses_and_allow_creation():
    assert (Settings().max_auth_failures, Settings().auto_create) == (60, ("all",))
