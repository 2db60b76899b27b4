"""Every route, with every set of scopes, with names within and beyond the key's prefix.

`RULES` says what the contract asks of each route, apart from the table that the server goes by. A route without a rule
fails here: a new operation must declare its scope and its names.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ServerProcess
from tests.security.conftest import Caller, Reply
from tests.security.keys import EVERY_SET, FULL, FULL_IN, PREFIX, key_for
from topics.server.api.route import Route
from topics.server.api.route_table import ROUTES

INSIDE, OUTSIDE = f"{PREFIX}name", "out.name"
STREAM = ("accept: text/event-stream",)
SOCKET = (
    "connection: upgrade",
    "upgrade: websocket",
    "sec-websocket-version: 13",
    "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


class Rule(NamedTuple):
    """What a route asks for, and a request to it. A body is made from one name per place where it takes names."""

    scopes: str = ""
    body: Callable[..., Any] | None = None
    body_names: int = 0
    query: str = ""
    fields: tuple[str, ...] = ()
    anyone: bool = False  # needs no key


RECORDS = {"records": [{"data": 1}]}
HELD = {"node": "w", "seqs": [1]}

RULES: dict[str, Rule] = {
    "PUT /v0/topics/{topic}": Rule("admin", lambda letters: {"type": "queue", "dead_letter": letters + ".dead"}, 1),
    "GET /v0/topics/{topic}": Rule("read"),
    "GET /v0/topics": Rule("read"),
    "DELETE /v0/topics/{topic}": Rule("delete"),
    "POST /v0/topics/{topic}": Rule("write", lambda letters: RECORDS | {"config": {"dead_letter": letters + ".x"}}, 1),
    "POST /v0/topics/{topic}/diff": Rule("read", dict),
    "POST /v0/topics/{topic}/scan": Rule("read", dict),
    "POST /v0/topics/{topic}/delete": Rule("delete", lambda: {"before_seq": 1}),
    "POST /v0/topics/{topic}/archived": Rule("admin", lambda: {"seq": 0, "epoch": 1}),
    "PUT /v0/topics/{topic}/consumers/{consumer}": Rule("read write", lambda: {"seq": 0}),
    "GET /v0/topics/{topic}/consumers/{consumer}": Rule("read"),
    "DELETE /v0/topics/{topic}/consumers/{consumer}": Rule("delete"),
    "GET /v0/topics/{topic}/consumers": Rule("read"),
    "GET /v0/consumers": Rule("read"),
    "POST /v0/consumers": Rule(
        "read write", lambda topic: {"commits": [{"topic": topic, "consumer": "billing", "seq": 0}]}, 1
    ),
    "PUT /v0/routers/{router}": Rule("admin", lambda source, dest: {"source": source, "dest": dest + ".to"}, 2),
    "GET /v0/routers/{router}": Rule("read"),
    "GET /v0/routers": Rule("read"),
    "DELETE /v0/routers/{router}": Rule("delete"),
    "POST /v0/routers/{router}/preview": Rule("read", lambda source: {"source": source}, 1),
    "PUT /v0/schedules/{schedule}": Rule(
        "admin", lambda topic: {"topic": topic, "record": {"data": 1}, "cron": "@yearly"}, 1
    ),
    "GET /v0/schedules/{schedule}": Rule("read"),
    "GET /v0/schedules": Rule("read"),
    "DELETE /v0/schedules/{schedule}": Rule("delete"),
    "POST /v0/schedules/{schedule}/run": Rule("write"),
    "POST /v0/schedules/{schedule}/pause": Rule("admin", lambda: {"paused": True}),
    "POST /v0/schedules/{schedule}/preview": Rule("read", lambda: {"cron": "@yearly"}),
    "POST /v0/watch": Rule("read", lambda one, two: {"topics": {one: {}, two + ".two": {}}}, 2, query="?lenient=true"),
    "GET /v0/watch/{wid}": Rule(fields=STREAM),
    "GET /v0/ws": Rule(fields=SOCKET),
    "POST /v0/topics/{topic}/claim": Rule("read write", lambda: {"node": "w"}),
    "POST /v0/topics/{topic}/ack": Rule("write", lambda: HELD),
    "POST /v0/topics/{topic}/nack": Rule("write", lambda: HELD),
    "POST /v0/topics/{topic}/extend": Rule("write", lambda: HELD | {"lease_ms": 1000}),
    "GET /v0/topics/{topic}/work": Rule("read write", query="?node=w", fields=STREAM),
    "GET /v0/topics/{topic}/jobs": Rule("read"),
    # It deletes in the dead-letter topic.
    "POST /v0/topics/{topic}/redrive": Rule("read write delete", lambda letters: {"dead_letter": letters + ".dead"}, 1),
    "GET /v0/health": Rule(anyone=True),
    "GET /healthz": Rule(anyone=True),
    "GET /v0/ready": Rule(anyone=True),
    "GET /readyz": Rule(anyone=True),
    "GET /v0/metrics": Rule("read"),
    "GET /metrics": Rule("read"),
    "GET /v0/openapi.json": Rule(anyone=True),
    "GET /v0/whoami": Rule(),
    "POST /v0/tokens": Rule("", dict),
    "POST /v0/tokens/revoke": Rule("admin", lambda: {"id": "none"}),
    "GET /v0/keys": Rule("admin"),
    "POST /v0/keys": Rule("admin", lambda: {"key": "in.same"}),
    "POST /v0/keys/{key}/rotate": Rule("admin", dict),
    "DELETE /v0/keys/{key}": Rule("admin"),
    "GET /v0/samples": Rule("read"),
    "POST /v0/sql": Rule("read", lambda: {"query": " "}),
    "GET /v0/replica": Rule("read"),
    "POST /v0/replica/promote": Rule("admin", lambda: {"to": "none"}),
    "GET /v0/topics/{topic}/schema": Rule("read"),
    "GET /v0/topics/{topic}/timeline": Rule("read"),
    "GET /": Rule(anyone=True),
    "GET /console": Rule(anyone=True),
    "GET /console/{file}": Rule(anyone=True),
    "GET /console/parts/{file}": Rule(anyone=True),
    "GET /console/pages/{file}": Rule(anyone=True),
    "GET /client.js": Rule(anyone=True),
    "GET /client.d.ts": Rule(anyone=True),
}
REFUSED = (401, 403)
KEYED = [route for route in ROUTES if not route.signed]


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


def rule_of(route: Route) -> Rule:
    return RULES[label(route)]


def path_of(route: Route, name: str) -> str:
    path = route.path.replace("{topic}", name).replace("{router}", name).replace("{schedule}", name)
    path = path.replace("{wid}", "wid_" + "A" * 22)
    path = path.replace("/parts/{file}", "/parts/dom.js").replace("/pages/{file}", "/pages/topics.js")
    return path.replace("{file}", "app.js").replace("{consumer}", "billing").replace("{key}", "in.none")


def ask(caller: Caller, route: Route, key: str | None, name: str, *body_names: str, body: Any = None) -> Reply:
    rule = rule_of(route)
    path = path_of(route, name)
    if body is None and rule.body is not None:
        body = rule.body(*(body_names or [name] * rule.body_names))
    reply = caller.send(route.method, path + rule.query, body, key=key, fields=rule.fields)
    assert reply.status < 500, (label(route), key, reply.status, reply.text)
    return reply


def takes_a_name(route: Route) -> bool:
    return any(part in route.path for part in ("{topic}", "{router}", "{schedule}"))


def routes(keep: Callable[[Route], bool] = lambda route: True) -> list[Any]:
    return [pytest.param(route, id=label(route)) for route in KEYED if keep(route)]


@pytest.fixture(scope="module")
def server(guarded: Caller) -> Iterator[Caller]:
    for name in (INSIDE, OUTSIDE):
        for topic in (name, f"{name}.queue", f"{name}.dead"):
            kind = {"type": "queue"} if topic.endswith("queue") else {}
            assert guarded.send("PUT", f"/v0/topics/{topic}", kind, key=FULL).status == 201
    return guarded


def test_only_webhooks_need_no_key_but_a_signature():
    """`test_webhooks.py` has their tests."""
    assert [label(route) for route in ROUTES if route.signed] == ["POST /v0/hooks/{topic}"]


def test_every_route_has_a_rule():
    assert {label(route) for route in KEYED} - set(RULES) == set(), "say who may call these, and with which names"


def test_the_table_asks_for_the_scopes_that_the_contract_names():
    for route in KEYED:
        rule = rule_of(route)
        words = {scope.name.lower() for scope in route.scope if scope.name}
        assert words == set(rule.scopes.split()), label(route)
        assert route.probe == rule.anyone, label(route)


def test_every_part_of_a_path_that_is_a_variable_is_a_name_the_guard_checks_or_a_session():
    """A consumer belongs to its topic, whose name is in the same path."""
    parts = {part for route in KEYED for part in route.path.split("/") if part.startswith("{")}
    assert parts <= {"{topic}", "{router}", "{schedule}", "{wid}", "{consumer}", "{file}", "{key}"}
    assert all("{topic}" in route.path for route in KEYED if "{consumer}" in route.path)
    files = {route.path for route in KEYED if "{file}" in route.path}
    assert all(path.startswith("/console/") for path in files), "files are open to anyone"


def test_only_the_two_event_streams_take_a_token_from_the_url():
    taking = {label(route) for route in KEYED if route.query_token}
    assert taking == {"GET /v0/watch/{wid}", "GET /v0/topics/{topic}/work"}


@pytest.mark.parametrize("route", routes())
def test_a_route_is_open_to_the_keys_that_have_its_scopes_and_to_no_other(server: Caller, route: Route):
    rule = rule_of(route)
    for scopes in EVERY_SET:
        for prefixed in (False, True):
            reply = ask(server, route, key_for(scopes, prefixed=prefixed), INSIDE)
            if rule.anyone or set(rule.scopes.split()) <= scopes:
                assert reply.status not in REFUSED, (scopes, prefixed, reply.status, reply.text)
            else:
                assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden"), (scopes, prefixed)


@pytest.mark.parametrize("route", routes())
def test_without_a_key_or_with_a_wrong_one_only_probes_answer(server: Caller, route: Route):
    for key in (None, "", "secret", FULL[:-1], FULL + "x", FULL.upper(), "é"):
        reply = ask(server, route, key, INSIDE)
        if rule_of(route).anyone:
            assert reply.status not in REFUSED
        else:
            assert (reply.status, reply.json["error"]["code"]) == (401, "unauthorized"), key
            assert reply.headers["www-authenticate"] == "bearer"


@pytest.mark.parametrize("route", routes(takes_a_name))
def test_a_name_in_the_path_beyond_the_prefix_is_refused_whether_it_exists_or_not(server: Caller, route: Route):
    for name in (OUTSIDE, "absent", "i", "in", "In.name", "xin.name"):
        inside = [INSIDE] * rule_of(route).body_names
        reply = ask(server, route, FULL_IN, name, *inside)
        assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden"), name
        assert ask(server, route, FULL, name, *inside).status not in REFUSED


@pytest.mark.parametrize("route", routes(lambda route: bool(RULES.get(label(route), Rule()).body_names)))
def test_a_name_in_a_body_beyond_the_prefix_is_refused_in_any_place(server: Caller, route: Route):
    count = rule_of(route).body_names
    name = f"{INSIDE}.queue" if "redrive" in route.path else INSIDE
    assert ask(server, route, FULL_IN, name, *[INSIDE] * count).status not in REFUSED
    for place in range(count):
        names = [INSIDE] * count
        names[place] = OUTSIDE
        reply = ask(server, route, FULL_IN, name, *names)
        assert (reply.status, reply.json["error"]["code"]) == (403, "forbidden"), (place, reply.text)


def test_paths_that_do_not_exist_are_told_to_callers_with_a_key_only(server: Caller):
    for method, path in (
        ("GET", "/v0/nothing"),
        ("GET", "/nothing"),
        ("POST", "/v0/metrics"),
        ("OPTIONS", "/v0/topics"),
    ):
        assert server.send(method, path).status == 401
        assert server.send(method, path, key="wrong").status == 401
        assert server.send(method, path, key=key_for(frozenset({"read"}))).status in (404, 405)


def test_a_head_request_asks_for_what_its_get_asks_for(server: Caller):
    for key, status in ((None, 401), (key_for(frozenset({"write"})), 403), (key_for(frozenset({"read"})), 200)):
        sock = server.connect()
        auth = "" if key is None else f"authorization: Bearer {key}\r\n"
        sock.sendall(f"HEAD /v0/topics/{INSIDE} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{auth}\r\n".encode())
        assert int(sock.recv(4096).split()[1]) == status
        sock.close()


def test_lists_and_metrics_name_only_what_the_key_may_use(server: Caller):
    for scopes in EVERY_SET:
        if "read" in scopes:
            listed = server.send("GET", "/v0/topics?page_size=1000", key=key_for(scopes, prefixed=True)).json["topics"]
            assert listed
            assert all(found["topic"].startswith(PREFIX) for found in listed)
    for accept in ("text/plain", "application/json"):
        answer = server.send("GET", "/v0/metrics", key=FULL_IN, fields=(f"accept: {accept}",)).text
        assert INSIDE in answer
        assert OUTSIDE not in answer
        assert OUTSIDE in server.send("GET", "/v0/metrics", key=FULL, fields=(f"accept: {accept}",)).text


def test_a_router_that_joins_hidden_topics_is_hidden_too_whatever_its_name(server: Caller):
    ends = {"a": (OUTSIDE, f"{INSIDE}.queue"), "b": (INSIDE, OUTSIDE), "c": (INSIDE, f"{INSIDE}.to")}
    for name, (source, dest) in ends.items():
        body = {"source": source, "dest": dest}
        assert server.send("PUT", f"/v0/routers/{PREFIX}{name}", body, key=FULL).status in (200, 201)
    names = [router["router"] for router in server.send("GET", "/v0/routers", key=FULL_IN).json["routers"]]
    assert (f"{PREFIX}a" in names, f"{PREFIX}b" in names, f"{PREFIX}c" in names) == (False, False, True)
    for name, status in (("a", 403), ("b", 403), ("c", 200)):
        assert server.send("GET", f"/v0/routers/{PREFIX}{name}", key=FULL_IN).status == status
    assert server.send("POST", f"/v0/routers/{PREFIX}a/preview", {}, key=FULL_IN).status == 403
    absent = server.send("POST", f"/v0/routers/{PREFIX}a/preview", {"source": "out.absent"}, key=FULL_IN)
    assert absent.status == 403, "whether a topic beyond the prefix exists is not revealed"
    for name in ("a", "b", "c"):
        server.send("DELETE", f"/v0/routers/{PREFIX}{name}", key=FULL)


def test_a_cursor_of_another_key_leads_nowhere_new(server: Caller):
    page = server.send("GET", "/v0/topics?page_size=1", key=FULL).json
    for cursor in (page["next_cursor"], "eyJhZnRlciI6Im91dCJ9"):
        answer = server.send("GET", f"/v0/topics?cursor={cursor}", key=FULL_IN).json
        assert all(found["topic"].startswith(PREFIX) for found in answer["topics"])


def create_again(server: Caller, name: str, **config: str) -> None:
    """Create a topic if a test before this one has removed it."""
    assert server.send("PUT", f"/v0/topics/{name}", config, key=FULL).status in (200, 201)


def test_the_scheme_may_be_written_in_any_case_and_no_other_scheme_counts(server: Caller):
    create_again(server, INSIDE)
    path = f"/v0/topics/{INSIDE}"
    for value in (f"bearer {FULL}", f"BEARER {FULL}", f"Bearer   {FULL}"):
        assert server.send("GET", path, fields=(f"authorization: {value}",)).status == 200
    for value in (FULL, f"Basic {FULL}", f"Bearer{FULL}", "Bearer", f"Bearer {FULL} x", f'Bearer "{FULL}"'):
        assert server.send("GET", path, fields=(f"authorization: {value}",)).status == 401


def test_a_token_in_the_url_opens_the_event_streams_and_nothing_else(server: Caller):
    create_again(server, f"{INSIDE}.queue", type="queue")
    work = f"/v0/topics/{INSIDE}.queue/work?node=w&token="
    assert server.send("GET", work + FULL, fields=STREAM).status == 200
    assert server.send("GET", work + FULL.replace("-", "%2D"), fields=STREAM).status == 200
    assert server.send("GET", work + f"{FULL}&token=wrong", fields=STREAM).status == 200
    assert server.send("GET", work + f"wrong&token={FULL}", fields=STREAM).status == 401
    assert server.send("GET", work + FULL, fields=STREAM, key="wrong").status == 401, "the header comes first"
    assert server.send("GET", work + key_for(frozenset({"read"})), fields=STREAM).status == 403
    assert server.send("GET", f"/v0/topics/{INSIDE}?token={FULL}").status == 401
    assert server.send("GET", f"/v0/ws?token={FULL}", fields=SOCKET).status == 401
    assert server.send("POST", f"/v0/watch?token={FULL}", {"topics": {INSIDE: {}}}).status == 401


def test_a_watch_session_opens_for_the_key_that_made_it_and_for_no_other(server: Caller):
    create_again(server, INSIDE)
    made = server.send("POST", "/v0/watch", {"topics": {INSIDE: {}}}, key=FULL_IN).json
    url = made["stream_url"]
    assert server.send("GET", url, fields=STREAM).status == 401
    for key in (FULL, key_for(frozenset({"read"}), prefixed=True), "wrong"):
        reply = server.send("GET", url, key=key, fields=STREAM)
        assert (reply.status, reply.json["error"]["code"]) == (401, "unauthorized")
        assert server.send("GET", f"{url}?token={key}", fields=STREAM).status == 401
    assert server.send("GET", url, key=FULL_IN, fields=STREAM).status == 200
    assert server.send("GET", f"{url}?token={FULL_IN}", fields=STREAM).status == 200


def test_probes_ask_for_a_key_where_the_operator_says_so(tmp_path: Path):
    running = ServerProcess(tmp_path, {"api_keys": "k-write:write", "probe_auth": "true"}, wait_ready=False)
    server = Caller(running.port)
    probes = [path_of(route, "") for route in KEYED if rule_of(route).anyone]
    assert len(probes) >= 4
    assert {server.send("GET", path).status for path in probes} == {401}
    assert {server.send("GET", path, key="k-write").status for path in probes} <= {200, 503}
    assert server.send("GET", "/v0/metrics", key="k-write").status == 403
    server.close()
    running.stop()


def test_an_error_about_routers_names_no_topic_beyond_the_prefix(guarded: Caller):
    """A circle and a second source can lead through topics that the caller may not know of."""
    for name, source, dest in (("r1", "in.a", "secret"), ("r2", "secret", "in.b"), ("r3", "secret", "in.c")):
        reply = guarded.send("PUT", f"/v0/routers/{name}", {"source": source, "dest": dest}, key=FULL)
        assert reply.status == 201, reply.text
    circle = {"source": "in.b", "dest": "in.a"}
    answer = guarded.send("PUT", "/v0/routers/in.circle", circle, key=FULL)
    assert answer.json["error"]["detail"]["cycle"] == ["in.b", "in.a", "secret", "in.b"]
    hidden = guarded.send("PUT", "/v0/routers/in.circle", circle, key=FULL_IN)
    assert (hidden.status, hidden.json["error"]["code"]) == (409, "router_cycle")
    assert hidden.json["error"]["detail"]["cycle"] == ["in.b", "in.a", "…", "in.b"]
    second = guarded.send("PUT", "/v0/routers/in.second", {"source": "in.a", "dest": "in.c"}, key=FULL_IN)
    assert (second.status, second.json["error"]["detail"]["reason"]) == (409, "router_dest_fan_in")
    assert "secret" not in hidden.text + second.text
