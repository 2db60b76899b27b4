"""Tokens: what they may do, which are refused, and what ends with them."""

import asyncio
import base64
import json
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from tests.conftest import ServerProcess, StartServer
from tests.contract.api import eventually
from tests.security.conftest import Caller
from tests.security.keys import EVERY_SET, PREFIX, key_for, keys_setting
from tests.security.test_matrix import INSIDE, OUTSIDE, REFUSED, ask, path_of, routes, rule_of, takes_a_name
from topics.server.api.route import Route

SECRET = "0123456789abcdef0123456789abcdef"
ADMIN = "root-key"
RECORDS = {"records": [{"data": 1}]}


def claims(**changes: Any) -> dict[str, Any]:
    now = time.time()
    fields: dict[str, Any] = {"aud": "topics", "iat": now, "exp": now + 60, "topics": {"scopes": ["read", "write"]}}
    return {name: value for name, value in (fields | changes).items() if value is not None}


def signed(
    secret: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **changes: Any
) -> str:
    return jwt.encode(claims(**changes), secret, algorithm, headers)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


@pytest.fixture(scope="module")
def process(place: Path) -> Iterator[ServerProcess]:
    (place / "token-keys").write_text(f"# of the shop\n{SECRET}\n")
    keys = f"{ADMIN},{keys_setting()}"
    server = ServerProcess(place, {"api_keys": keys, "token_keys_file": place / "token-keys"})
    yield server
    server.stop()


@pytest.fixture(scope="module")
def server(process: ServerProcess) -> Iterator[Caller]:
    caller = Caller(process.port)
    for name in (INSIDE, OUTSIDE, "orders"):
        assert caller.send("PUT", f"/v0/topics/{name}", {}, key=ADMIN).status in (200, 201)
    yield caller
    caller.close()


def made(server: Caller, key: str = ADMIN, **wanted: Any) -> Any:
    reply = server.send("POST", "/v0/tokens", wanted, key=key)
    assert reply.status == 201, reply.text
    return reply.json


def token(server: Caller, key: str = ADMIN, **wanted: Any) -> str:
    return str(made(server, key, **wanted)["token"])


# --- the matrix


@pytest.mark.parametrize("route", routes())
def test_token_opens_the_routes_of_its_scopes_and_names(server: Caller, route: Route):
    """Tokens of this server and of an application, for every set of scopes, with and without a prefix."""
    rule = rule_of(route)
    for scopes in EVERY_SET:
        for prefixed in (False, True):
            rights = {"scopes": sorted(scopes)} | ({"prefixes": [PREFIX]} if prefixed else {})
            for one in (token(server, key_for(scopes, prefixed=prefixed)), signed(topics=rights)):
                status = ask(server, route, one, INSIDE).status
                key = "{key}" in route.path or route.path == "/v0/keys"
                if rule.anyone or (set(rule.scopes.split()) <= scopes and not key and "tokens" not in route.path):
                    assert status not in REFUSED, (scopes, prefixed)
                elif not set(rule.scopes.split()) <= scopes:
                    assert status == 403, (scopes, prefixed)
                if prefixed and takes_a_name(route):
                    assert ask(server, route, one, OUTSIDE, *[INSIDE] * rule.body_names).status == 403


def test_token_cannot_create_keys_or_tokens(server: Caller):
    one = token(server)
    for path, body in (("/v0/tokens", {}), ("/v0/keys", {"key": "other"})):
        assert server.send("POST", path, body, key=one).status == 403
    assert server.send("GET", "/v0/keys", key=one).status == 403


@pytest.mark.parametrize(
    ("key", "wanted", "field"),
    [
        (key_for(frozenset({"read"})), {"scopes": ["read", "write"]}, "scopes"),
        (key_for(frozenset({"read"}), prefixed=True), {"prefixes": []}, "prefixes"),
        (key_for(frozenset({"read"}), prefixed=True), {"prefixes": ["out."]}, "prefixes"),
        (key_for(frozenset({"read"}), prefixed=True), {"names": ["out.name"]}, "prefixes"),
    ],
)
def test_token_has_at_most_the_rights_of_its_key(server: Caller, key: str, wanted: dict[str, Any], field: str):
    reply = server.send("POST", "/v0/tokens", wanted, key=key)
    assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden"), reply.text
    assert reply.json["error"]["detail"]["field"] in (field, "names")


def test_exact_name_covers_no_longer_name_and_no_pattern(server: Caller):
    one = token(server, names=["orders"])
    assert server.send("GET", "/v0/topics/orders", key=one).status == 200
    assert server.send("POST", "/v0/topics/orders2", RECORDS, key=one).status == 403
    assert server.send("POST", "/v0/watch", {"topics": {"orders": {}}}, key=one).status == 200
    assert server.send("POST", "/v0/watch", {"topics": {"orders*": {}}}, key=one).status == 403
    assert [row["topic"] for row in server.send("GET", "/v0/topics", key=one).json["topics"]] == ["orders"]


def test_operations_limit_what_the_scopes_allow(server: Caller):
    one = token(server, operations=["watch"])
    assert server.send("POST", "/v0/watch", {"topics": {"orders": {}}}, key=one).status == 200
    for method, path, body in (
        ("POST", "/v0/topics/orders/diff", {}),
        ("POST", "/v0/topics/orders", RECORDS),
        ("GET", "/v0/topics/orders", None),
        ("DELETE", "/v0/topics/orders", None),
    ):
        reply = server.send(method, path, body, key=one)
        assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden"), path
    assert server.send("GET", "/v0/whoami", key=one).json["operations"] == ["watch"]


def test_node_of_a_token_cannot_be_forged(server: Caller):
    one = token(server, node="u1")
    assert server.send("POST", "/v0/topics/orders", {"records": [{"data": 1}]}, key=one).status == 200
    for body in ({"records": [{"data": 1}], "node": "u2"}, {"records": [{"data": 1, "node": "u2"}]}):
        assert server.send("POST", "/v0/topics/orders", body, key=one).status == 403
    last = server.send("POST", "/v0/topics/orders/diff", {}, key=ADMIN).json["records"][-1]
    assert last["$node"] == "u1"


def test_limits_of_a_token_come_first(server: Caller):
    one = token(server, max_streams=1, rate=3)
    statuses = [server.send("GET", "/v0/whoami", key=one).status for _ in range(6)]
    assert statuses[:3] == [200] * 3
    assert 429 in statuses


def test_token_is_for_pages_of_its_origins(server: Caller):
    one = token(server, origins=["https://app.example"])
    for origin, status in (("https://app.example", 200), ("https://evil.example", 403)):
        assert server.send("GET", "/v0/whoami", key=one, fields=(f"origin: {origin}",)).status == status


# --- tokens that are refused


def parts(text: str) -> list[str]:
    return text.split(".")


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def forged() -> dict[str, str]:
    good, now = signed(), time.time()
    head, body, signature = parts(good)
    admin = encoded(claims(topics={"scopes": ["admin"]}))
    return {
        "another secret": signed("f" * 32),
        "other claims": f"{head}.{admin}.{signature}",
        "truncated": good[:-5],
        "no signature": f"{head}.{body}.",
        "alg none": f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{body}.",
        "alg None with signature": f"{encoded({'alg': 'None'})}.{body}.{signature}",
        "another algorithm": signed("f" * 64, "HS512"),
        "an unknown kid": signed(headers={"kid": "other"}),
        "wrong audience": signed(aud="other"),
        "no audience": signed(aud=None),
        "expired": signed(iat=now - 100, exp=now - 1),
        "no expiry": signed(exp=None),
        "of the future": signed(iat=now + 600, exp=now + 660),
        "not before": signed(nbf=now + 600),
        "valid too long": signed(exp=now + 3 * 86_400),
        "text as expiry": f"{head}.{encoded(claims(exp='never'))}.{signature}",
        "no rights": signed(topics=None),
        "no scopes": signed(topics={"names": ["orders"]}),
        "unknown scope": signed(topics={"scopes": ["root"]}),
        "unknown field": signed(topics={"scopes": ["read"], "except": ["orders"]}),
        "unknown key": signed(topics={"scopes": ["read"], "key": "gone"}),
        "too long": signed(sub="x" * 9000),
        "nonsense": "eyJ.e30.x",
    }


def test_token_of_an_application_is_accepted(server: Caller):
    assert server.send("GET", "/v0/topics/orders", key=signed()).status == 200


@pytest.mark.parametrize("kind", sorted(forged()))
def test_invalid_token_is_refused(server: Caller, process: ServerProcess, kind: str):
    bad = forged()[kind]
    reply = server.send("GET", "/v0/topics/orders", key=bad)
    assert (reply.status, reply.json["error"]["code"]) == (401, "unauthorized"), reply.text
    assert bad not in reply.text
    assert bad not in process.log()


@pytest.mark.parametrize("form", ["pem", "jwks"])
def test_public_keys_check_tokens_of_an_identity_provider(start_server: StartServer, tmp_path: Path, form: str):
    rsa, ed = generate_private_key(65537, 2048), Ed25519PrivateKey.generate()
    file = tmp_path / "public"
    if form == "pem":
        pem = [one.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for one in (rsa, ed)]
        file.write_bytes(b"\n".join(pem))
        names: list[dict[str, Any] | None] = [None, None]
    else:
        rows = [jwt.algorithms.RSAAlgorithm.to_jwk(rsa.public_key(), as_dict=True)]
        rows.append(jwt.algorithms.OKPAlgorithm.to_jwk(ed.public_key(), as_dict=True))
        file.write_text(json.dumps({"keys": [row | {"kid": f"k{n}"} for n, row in enumerate(rows)]}))
        names = [{"kid": "k0"}, {"kid": "k1"}]
    caller = Caller(start_server(api_keys=ADMIN, token_keys_file=file).port)
    assert caller.send("GET", "/v0/topics", key=signed(rsa, "RS256", names[0])).status == 200
    assert caller.send("GET", "/v0/topics", key=signed(ed, "EdDSA", names[1])).status == 200
    other = generate_private_key(65537, 2048)
    assert caller.send("GET", "/v0/topics", key=signed(other, "RS256", names[0])).status == 401
    if form == "pem":
        # The public key as an HMAC secret: a token has the algorithm of its key, not that of its header.
        with pytest.raises(jwt.InvalidKeyError):
            signed(pem[0], "HS256")
        head, body = encoded({"alg": "HS256"}), encoded(claims())
        import hashlib
        import hmac

        mac = hmac.digest(pem[0], f"{head}.{body}".encode(), hashlib.sha256)
        confused = f"{head}.{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
        assert caller.send("GET", "/v0/topics", key=confused).status == 401
    caller.close()


# --- the end of a token


def test_token_ends_with_its_time_its_id_its_key_and_all_others(server: Caller):
    def status(one: str) -> int:
        return server.send("GET", "/v0/topics/orders", key=one).status

    short, named, other = token(server, ttl_ms=300), made(server), token(server)
    assert [status(short), status(named["token"]), status(other)] == [200, 200, 200]
    assert server.send("POST", "/v0/tokens/revoke", {"id": named["id"]}, key=ADMIN).status == 200
    assert [status(named["token"]), status(other)] == [401, 200]
    whole = token(server, key_for(frozenset({"read"})))
    assert server.send("POST", "/v0/tokens/revoke", {"key": "key1"}, key=ADMIN).status == 200
    assert [status(other), status(whole)] == [401, 200]
    assert server.send("POST", "/v0/tokens/revoke", {}, key=ADMIN).status == 200
    assert [status(whole), status(token(server))] == [401, 200]
    eventually(lambda: status(short), lambda found: found == 401)


def test_revocation_survives_a_kill(start_server: StartServer, tmp_path: Path):
    (tmp_path / "token-keys").write_text(SECRET)
    settings = {"api_keys": ADMIN, "data_dir": tmp_path / "data", "token_keys_file": tmp_path / "token-keys"}
    first = start_server(**settings)
    caller = Caller(first.port)
    gone, kept = made(caller), made(caller)
    assert caller.send("POST", "/v0/tokens/revoke", {"id": gone["id"]}, key=ADMIN).status == 200
    caller.close()
    first.kill()
    caller = Caller(start_server(**settings).port)
    assert caller.send("GET", "/v0/topics", key=gone["token"]).status == 401
    assert caller.send("GET", "/v0/topics", key=kept["token"]).status == 200
    caller.close()


async def command(socket: ClientConnection, **fields: Any) -> Any:
    await socket.send(json.dumps(fields | {"request_id": 1}))
    while True:
        answer = json.loads(await asyncio.wait_for(socket.recv(), 10))
        if answer.get("request_id") == 1:
            return answer


def test_open_stream_ends_when_its_token_does_and_continues_with_the_next(server: Caller):
    body = {"topics": {"orders": {"tail": True}}}
    first = token(server, subject="ann", ttl_ms=1500)
    session = server.send("POST", "/v0/watch", body, key=first).json
    sock = server.connect()
    head = f"GET {session['stream_url']}?token={first} HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\n\r\n"
    sock.sendall(head.encode())
    text = b""
    while b'"code":401' not in text:
        piece = sock.recv(65_536)
        assert piece, text
        text += piece
    sock.close()
    assert server.send("POST", "/v0/topics/orders", {"records": [{"data": "meanwhile"}]}, key=ADMIN).status == 200
    for other in (token(server, subject="bob"), token(server, subject="ann", names=["orders"])):
        assert server.send("GET", session["stream_url"], key=other).status == 401, "of another subject, or other rights"
    sock = server.connect()
    newer = token(server, subject="ann")
    sock.sendall(head.replace(first, newer).encode())
    text = b""
    while b"meanwhile" not in text:
        piece = sock.recv(65_536)
        assert piece, text
        text += piece
    sock.close()


@pytest.mark.parametrize("way", ["header", "protocol", "message"])
def test_websocket_is_renewed_and_ends_with_its_token(process: ServerProcess, server: Caller, way: str):
    url = f"ws://127.0.0.1:{process.port}/v0/ws"

    async def talk() -> None:
        first = token(server, subject="ann", ttl_ms=2000)
        options: dict[str, Any] = {
            "header": {"additional_headers": {"authorization": f"Bearer {first}"}},
            "protocol": {"subprotocols": ["topics", f"topics.bearer.{first}"]},
            "message": {"subprotocols": ["topics"]},
        }[way]
        async with connect(url, compression=None, proxy=None, **options) as socket:
            if way != "header":
                assert socket.subprotocol == "topics"
            if way == "message":
                refused = await command(socket, op="publish", topic="orders", **RECORDS)
                assert refused["code"] == "unauthorized"
                assert (await command(socket, op="authenticate", token=first))["op"] == "authenticated"
            assert (await command(socket, op="subscribe", topic="orders", tail=True))["op"] == "subscribed"
            other = await command(socket, op="authenticate", token=token(server, subject="bob"))
            assert other["code"] == "forbidden"
            newer = token(server, subject="ann", ttl_ms=4000)
            assert (await command(socket, op="authenticate", token=newer))["op"] == "authenticated"
            began = time.monotonic()
            seen = []
            with suppress(ConnectionClosedError):
                async for message in socket:
                    seen.append(json.loads(message))
            assert (seen[-1]["op"], seen[-1]["code"]) == ("error", "unauthorized")
            assert time.monotonic() - began > 2.5, "the connection has outlived its first token"

    asyncio.run(talk())


def test_websocket_without_a_key_is_closed(process: ServerProcess):
    async def talk() -> Any:
        url = f"ws://127.0.0.1:{process.port}/v0/ws"
        async with connect(url, subprotocols=["topics"], compression=None, proxy=None) as socket:  # type: ignore[list-item]
            return await command(socket, op="authenticate", token="wrong")

    with pytest.raises(Exception, match="1008"):
        asyncio.run(talk())


def test_no_token_or_secret_is_in_logs_metrics_or_the_process_list(process: ServerProcess, server: Caller):
    one = token(server)
    for path in (
        "/v0/topics/none",
        f"/v0/watch/wid_{'A' * 22}?token={one}",
        f"/v0/topics/orders/work?node=w&token={one}x",
    ):
        server.send("GET", path, key=None if "token=" in path else one)
    texts = [process.log(), server.send("GET", "/v0/metrics", key=ADMIN).text]
    texts += [Path(f"/proc/{process.process.pid}/{name}").read_bytes().decode() for name in ("cmdline", "environ")]
    for text in texts:
        assert one not in text
        assert SECRET not in text
        assert parts(one)[2] not in text
    assert "topics_auth_failures_total" in texts[1]


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="needs /proc")
@pytest.mark.parametrize("keys", ["root", ""])
def test_server_with_keys_writes_no_core_file(start_server: StartServer, keys: str):
    if not resource.getrlimit(resource.RLIMIT_CORE)[1]:
        pytest.skip("no process of this machine may write a core file")
    running = start_server(ulimit="-S -c $(ulimit -H -c)", **({"api_keys": keys} if keys else {}))
    limits = Path(f"/proc/{running.process.pid}/limits").read_text()
    [allowed] = re.findall(r"Max core file size +(\w+)", limits)
    assert (allowed == "0") is bool(keys)


def test_changed_files_of_keys_are_read_without_a_signal(start_server: StartServer, tmp_path: Path):
    keys, secrets = tmp_path / "keys", tmp_path / "token-keys"
    keys.write_text("one\n")
    secrets.write_text(SECRET)
    running = start_server(api_keys_file=keys, token_keys_file=secrets)
    caller = Caller(running.port)
    assert caller.send("GET", "/v0/topics", key=signed()).status == 200
    keys.write_text("one\ntwo\n")
    eventually(lambda: caller.send("GET", "/v0/topics", key="two").status, lambda found: found == 200)
    secrets.write_text("f" * 32)
    os.kill(running.process.pid, signal.SIGHUP)
    eventually(lambda: caller.send("GET", "/v0/topics", key=signed()).status, lambda found: found == 401)
    assert caller.send("GET", "/v0/topics", key=signed("f" * 32)).status == 200
    caller.close()


def test_path_of_a_key_is_one_segment(server: Caller):
    assert path_of(next(one.values[0] for one in routes() if "{key}" in one.id), "x")
