"""Every operation, over every transport, with every set of scopes, with each name within and beyond the prefix.

The cases are made from the server's own tables: routes, WebSocket commands, and operations with the places that names
come from. `SCOPES` and `ESCAPES` say what the contract asks for, apart from those tables: an operation, a route, a
command or a place without an entry here fails the build.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple, get_args

import pytest
from websockets.sync.client import ClientConnection, connect

from tests.engine.harness import FakeLog, open_engine
from tests.security.conftest import Caller
from tests.security.keys import EVERY_SET, FULL, FULL_IN, key_for
from tests.security.test_matrix import INSIDE, KEYED, OUTSIDE, RECORDS, label, rule_of, takes_a_name
from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.keys import Rights
from topics.model.queue import RedriveRequest
from topics.model.router import RouterRequest
from topics.model.topic import ConfigPatch
from topics.model.watch import Command, TopicOptions
from topics.server.access import caller, operations
from topics.server.access.operations import COMMANDS, MORE, OPERATIONS, Operation, Scope

WAIT_S = 20

# What the contract asks of an operation (sections 0.2 and 7), whatever the transport.
SCOPES = {
    "configure topic": "admin",
    "read state": "read",
    "list topics": "read",
    "drop topic": "delete",
    "append": "write",
    "receive webhook": "write",
    "publish with config": "write admin",
    "read schema": "read",
    "read timeline": "read",
    "diff": "read",
    "diff as consumer": "read write",
    "scan": "read",
    "delete records": "delete",
    "report archived": "admin",
    "watch": "read",
    "watch as consumer": "read write",
    "commit": "read write",
    "open session": "",
    "connect socket": "",
    "authenticate": "",
    "create token": "",
    "revoke tokens": "admin",
    "list keys": "admin",
    "create key": "admin",
    "rotate key": "admin",
    "revoke key": "admin",
    "read audit": "read admin",
    "unsubscribe": "",
    "ping": "",
    "claim": "read write",
    "work": "read write",
    "ack": "write",
    "nack": "write",
    "extend": "write",
    "list jobs": "read",
    "redrive": "read write delete",
    "put consumer": "read write",
    "hold for consumer": "read write admin",
    "commit many": "read write",
    "read consumer": "read",
    "list consumers": "read",
    "drop consumer": "delete",
    "put router": "admin",
    "read router": "read",
    "list routers": "read",
    "drop router": "delete",
    "preview router": "read",
    "put schedule": "admin",
    "read schedule": "read",
    "list schedules": "read",
    "drop schedule": "delete",
    "run schedule": "write",
    "pause schedule": "admin",
    "preview schedule": "read",
    "read samples": "read",
    "query": "read",
    "read replica": "read",
    "promote": "admin",
    "read own rights": "",
    "probe": "",
    "read metrics": "read",
    "read document": "",
}


class Http(NamedTuple):
    """A request."""

    method: str
    path: str
    body: Any = None


# Requests whose target lies within the prefix, by the place of the one name that may lie beyond it: the operation, the
# transport, the place, and a variant where there are several ways. Queues and routers are those of `world`.
Ask = Callable[[str], Any]
ESCAPES: dict[tuple[str, str, str], list[Ask]] = {
    ("configure topic", "http", "dead_letter"): [
        lambda name: Http("PUT", "/v0/topics/in.new", {"type": "queue", "dead_letter": name}),
        lambda name: Http("PUT", f"/v0/topics/in.q.{name}", {"dead_letter": name}),
        lambda name: Http("PUT", f"/v0/topics/in.q.{name}", {"max_deliveries": 3}),
    ],
    ("append", "http", "config.dead_letter"): [
        lambda name: Http("POST", "/v0/topics/in.a", RECORDS | {"config": {"type": "queue", "dead_letter": name}}),
        lambda name: Http("POST", f"/v0/topics/in.q.{name}", RECORDS | {"config": {"dead_letter": name}}),
    ],
    # A publish with a configuration is an operation of its own, so this place stays empty in a plain one.
    ("append", "ws", "config.dead_letter"): [],
    ("publish with config", "ws", "config.dead_letter"): [
        lambda name: {"op": "publish", "topic": "in.a", "config": {"type": "queue", "dead_letter": name}} | RECORDS,
        lambda name: {"op": "publish", "topic": f"in.q.{name}", "config": {"dead_letter": name}} | RECORDS,
    ],
    ("watch", "http", "topics"): [
        lambda name: Http("POST", "/v0/watch?lenient=true", {"topics": {name: {}}}),
        lambda name: Http("POST", "/v0/watch?lenient=true", {"topics": {INSIDE: {}, name: {}}}),
        lambda name: Http("POST", "/v0/watch?lenient=true", {"topics": {f"{name}*": {}}}),
        lambda name: Http("POST", "/v0/watch?lenient=true", {"topics": {("in.*" if name == INSIDE else "in*"): {}}}),
    ],
    ("watch", "ws", "topics"): [
        lambda name: {"op": "subscribe", "topic": name, "lenient": True},
        lambda name: {"op": "subscribe", "topics": {INSIDE: {}, name: {}}, "lenient": True},
        lambda name: {"op": "subscribe", "topic": f"{name}*", "lenient": True},
        lambda name: {"op": "subscribe", "topic": "in.*" if name == INSIDE else "*", "lenient": True},
    ],
    ("watch as consumer", "http", "topics"): [
        lambda name: Http("POST", "/v0/watch?lenient=true", {"topics": {name: {"consumer": "c"}}}),
        lambda name: Http("POST", "/v0/watch?lenient=true", {"topics": {"in.from": {"consumer": "c"}, name: {}}}),
    ],
    ("watch as consumer", "ws", "topics"): [
        lambda name: {"op": "subscribe", "topic": name, "consumer": "c", "lenient": True},
        lambda name: {"op": "subscribe", "topics": {INSIDE: {}, name: {"consumer": "c"}}, "lenient": True},
    ],
    ("commit many", "http", "commits"): [
        lambda name: Http("POST", "/v0/consumers", {"commits": [{"topic": name, "consumer": "c", "seq": 0}]}),
        lambda name: Http(
            "POST",
            "/v0/consumers",
            {"commits": [{"topic": one, "consumer": "c", "seq": 0} for one in (INSIDE, name)]},
        ),
    ],
    ("redrive", "http", "dead_letter"): [
        lambda name: Http("POST", f"/v0/topics/in.q.{INSIDE}/redrive", {"dead_letter": name}),
        lambda name: Http("POST", f"/v0/topics/in.q.{name}/redrive", {}),
        lambda name: Http("POST", f"/v0/topics/in.q.{name}/redrive", {"dry_run": True}),
    ],
    ("put router", "http", "source"): [
        lambda name: Http("PUT", "/v0/routers/in.r", {"source": name, "dest": "in.to"}),
    ],
    ("put router", "http", "dest"): [
        lambda name: Http("PUT", "/v0/routers/in.r", {"source": "in.from", "dest": name}),
    ],
    ("read router", "http", "source and dest of the router"): [
        lambda name: Http("GET", f"/v0/routers/in.from.{name}"),
        lambda name: Http("GET", f"/v0/routers/in.to.{name}"),
    ],
    ("preview router", "http", "source, or those of the router"): [
        lambda name: Http("POST", "/v0/routers/in.none/preview", {"source": name}),
        lambda name: Http("POST", f"/v0/routers/in.from.{name}/preview", {}),
        lambda name: Http("POST", f"/v0/routers/in.to.{name}/preview", {}),
    ],
    ("put schedule", "http", "topic"): [
        lambda name: Http("PUT", "/v0/schedules/in.s", {"topic": name, "record": {"data": 1}, "cron": "@yearly"}),
    ],
    ("read schedule", "http", "topic of the schedule"): [lambda name: Http("GET", f"/v0/schedules/in.s.{name}")],
    ("run schedule", "http", "topic of the schedule"): [lambda name: Http("POST", f"/v0/schedules/in.s.{name}/run")],
    ("pause schedule", "http", "topic of the schedule"): [
        lambda name: Http("POST", f"/v0/schedules/in.s.{name}/pause", {"paused": True}),
    ],
    ("preview schedule", "http", "topic of the schedule"): [
        lambda name: Http("POST", f"/v0/schedules/in.s.{name}/preview", {}),
    ],
}
# Requests to a route whose body asks for more than the route does, by that operation.
BODIES: dict[str, Ask] = {
    "diff as consumer": lambda name: Http("POST", f"/v0/topics/{name}/diff", {"consumer": "c", "commit": True}),
    "watch as consumer": lambda name: Http("POST", "/v0/watch", {"topics": {name: {"consumer": "c"}}}),
    "hold for consumer": lambda name: Http(
        "PUT", f"/v0/topics/{name}/consumers/c", {"seq": 0, "hold": True, "max_hold_bytes": 1}
    ),
}
TARGETS: dict[str, Ask] = {
    "commit": lambda name: {"op": "commit", "topic": name, "consumer": "c", "seq": 0},
    "append": lambda name: {"op": "publish", "topic": name} | RECORDS,
    "publish with config": lambda name: {"op": "publish", "topic": name, "config": {}} | RECORDS,
}
WITHOUT_NAMES: dict[str, dict[str, Any]] = {
    "unsubscribe": {"op": "unsubscribe", "topic": OUTSIDE},
    "ping": {"op": "ping"},
    "authenticate": {"op": "authenticate", "token": FULL},
}


class World:
    """The server of `guarded`, and a WebSocket for every key."""

    def __init__(self, http: Caller) -> None:
        self._http = http
        self._open = ExitStack()
        self._sockets: dict[str, ClientConnection] = {}

    def refuses(self, ask: Any, key: str) -> bool:
        return self._refuses_http(ask, key) if isinstance(ask, Http) else self._refuses_command(ask, key)

    def _refuses_http(self, ask: Http, key: str) -> bool:
        reply = self._http.send(*ask, key=key)
        assert reply.status < 500, (ask, reply.text)
        return reply.status == 403

    def _refuses_command(self, command: dict[str, Any], key: str) -> bool:
        if key not in self._sockets:
            url = f"ws://127.0.0.1:{self._http.port}/v0/ws"
            headers = {"authorization": f"Bearer {key}"}
            opened = connect(url, additional_headers=headers, compression=None, proxy=None)
            self._sockets[key] = self._open.enter_context(opened)
        socket = self._sockets[key]
        socket.send(json.dumps(command | {"request_id": "this"}))
        frames = (json.loads(socket.recv(WAIT_S)) for _ in range(1000))
        answer = next(frame for frame in frames if frame.get("request_id") == "this")
        return answer["op"] == "error" and answer["code"] == "forbidden"

    def close(self) -> None:
        self._open.close()


@pytest.fixture(scope="module")
def world(guarded: Caller) -> Iterator[World]:
    """Queues and routers within the prefix whose other names lie within it, and beyond it."""
    for name in (INSIDE, OUTSIDE):
        queue = {"type": "queue", "dead_letter": name}
        for path, body in (
            (f"/v0/topics/{name}", {}),
            (f"/v0/topics/in.q.{name}", queue),
            (f"/v0/routers/in.from.{name}", {"source": name, "dest": f"in.copy.{name}"}),
            (f"/v0/routers/in.to.{name}", {"source": "in.from", "dest": f"{name}.copy"}),
            (f"/v0/schedules/in.s.{name}", {"topic": name, "record": {"data": 1}, "cron": "@yearly"}),
        ):
            assert guarded.send("PUT", path, body, key=FULL).status == 201
    made = World(guarded)
    yield made
    made.close()


# --- the tables are complete


def transports() -> list[tuple[Operation, str]]:
    """Every operation with every transport that offers it."""
    commands = {operation for pick in COMMANDS.values() for operation in _picked(pick)}
    found = {(route.operation, "http") for route in KEYED} | {(operation, "ws") for operation in commands}
    found |= {(operation, "http") for operation, _ in MORE.values()} | {(operations.READ_AUDIT, "http")}
    return sorted(found, key=lambda pair: (pair[0].name, pair[1]))


def _picked(pick: Callable[[Any], Operation]) -> set[Operation]:
    """The operations that a command can ask for, with and without a configuration or a consumer."""

    class Asked:
        def __init__(self, config: Any, consumer: str | None) -> None:
            self.config = config
            self._consumer = consumer

        def watched(self) -> dict[str, TopicOptions]:
            return {"t": TopicOptions(consumer=self._consumer)}

    return {pick(Asked(None, None)), pick(Asked(ConfigPatch(), "c"))}


def test_every_operation_is_offered_and_every_offer_is_an_operation():
    assert {operation for operation, _ in transports()} == {*OPERATIONS} - {
        operations.RECEIVE_WEBHOOK
    }  # which a signature allows, and no key
    assert set(get_args(Command)) == set(COMMANDS)
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_every_operation_has_the_scopes_of_the_contract():
    found = {operation.name: _words(operation.scope) for operation in OPERATIONS}
    assert found == {name: set(words.split()) for name, words in SCOPES.items()}


def _words(scope: Scope) -> set[str]:
    return {one.name.lower() for one in scope if one.name}


def test_every_place_of_a_name_has_cases():
    places = {(operation.name, way, place) for operation, way in transports() for place in operation.names}
    assert places == set(ESCAPES)
    assert {operation.name for operation, _ in MORE.values()} == set(BODIES)
    sockets = {operation.name for operation, way in transports() if way == "ws"}
    with_places = {name for name, way, _ in ESCAPES if way == "ws"}
    assert sockets == set(TARGETS) | set(WITHOUT_NAMES) | (with_places - set(TARGETS))


def test_a_route_whose_names_are_in_its_body_says_how_to_decode_it():
    for route in KEYED:
        if route.operation.names and route.body is not None:
            assert route.decode is not None, label(route)


# --- the matrix


def requests() -> Iterator[Any]:
    """Every request of the matrix: an operation, how it is asked for, and one name that is within the prefix or not."""
    for operation, way in transports():
        for place in operation.names:
            for at, ask in enumerate(ESCAPES[operation.name, way, place]):
                yield pytest.param(operation, ask, id=f"{operation.name}-{way}-{place}-{at}")
        if way == "http" and operation.name in BODIES:
            yield pytest.param(operation, BODIES[operation.name], id=f"{operation.name}-http-body")
        if way == "ws" and operation.name in TARGETS:
            yield pytest.param(operation, TARGETS[operation.name], id=f"{operation.name}-ws-target")
    for route in KEYED:
        if takes_a_name(route) and not rule_of(route).fields:  # event streams are in `test_matrix`
            yield pytest.param(route.operation, _targeted(route), id=f"{label(route)}-target")


def _targeted(route: Any) -> Ask:
    def ask(name: str) -> Http:
        rule = rule_of(route)
        path = route.path.replace("{consumer}", "billing") + rule.query
        for part in ("{topic}", "{router}", "{schedule}"):
            path = path.replace(part, f"{name}.target")
        body = None if rule.body is None else rule.body(*[INSIDE] * rule.body_names)
        return Http(route.method, path, body)

    return ask


@pytest.mark.parametrize(("operation", "ask"), list(requests()))
def test_an_operation_is_refused_without_its_scopes_or_beyond_the_prefix(world: World, operation: Operation, ask: Ask):
    needs = set(SCOPES[operation.name].split())
    for scopes in EVERY_SET:
        for prefixed in (False, True):
            for name in (OUTSIDE, INSIDE):
                refused = world.refuses(ask(name), key_for(scopes, prefixed=prefixed))
                assert refused == (not needs <= scopes or (prefixed and name == OUTSIDE)), (scopes, prefixed, name)


@pytest.mark.parametrize("setting", [{"hold": False}, {"max_hold_bytes": 0}])
def test_ending_a_hold_needs_the_scopes_of_beginning_one(world: World, setting: dict[str, Any]):
    ask = Http("PUT", f"/v0/topics/{INSIDE}/consumers/c", setting)
    assert world.refuses(ask, key_for(frozenset({"read", "write"})))
    assert not world.refuses(ask, key_for(frozenset({"read", "write", "admin"})))


@pytest.mark.parametrize("name", sorted(WITHOUT_NAMES.keys() - {"authenticate"}))
def test_commands_about_the_connection_itself_need_no_rights(world: World, name: str):
    assert SCOPES[name] == ""
    for scopes in EVERY_SET:
        for prefixed in (False, True):
            assert not world.refuses(WITHOUT_NAMES[name], key_for(scopes, prefixed=prefixed))


# --- ways around


def test_a_publish_cannot_make_a_queue_that_writes_beyond_the_prefix(world: World, guarded: Caller):
    """The queue would write there when a lease ends: to a topic of another tenant, or one that it would make."""
    for name in (OUTSIDE, "out.absent"):
        command = {"op": "publish", "topic": "in.esc", "config": {"type": "queue", "dead_letter": name}} | RECORDS
        assert world.refuses(command, FULL_IN)
        assert guarded.send("GET", "/v0/topics/in.esc", key=FULL).status == 404


def test_metrics_hide_a_router_that_joins_hidden_topics(world: World, guarded: Caller):
    for source, name in ((INSIDE, "in.seen"), (OUTSIDE, "in.hidden")):
        body = {"source": source, "dest": f"{name}.to"}
        assert guarded.send("PUT", f"/v0/routers/{name}", body, key=FULL).status in (200, 201)
    answer = guarded.send("GET", "/v0/metrics", key=FULL_IN).text
    assert 'router="in.seen"' in answer
    assert 'router="in.hidden"' not in answer
    assert 'router="in.hidden"' in guarded.send("GET", "/v0/metrics", key=FULL).text


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v0/routers/in.joins"), ("POST", "/v0/routers/in.joins/preview")]
)
def test_refused_router_does_not_reveal_its_topics(world: World, guarded: Caller, method: str, path: str):
    body = {"source": OUTSIDE, "dest": "in.joins.to"}
    assert guarded.send("PUT", "/v0/routers/in.joins", body, key=FULL).status in (200, 201)
    refused = guarded.send(method, path, None if method == "GET" else {}, key=FULL_IN)
    assert refused.status == 403
    assert OUTSIDE not in refused.text


def test_a_cursor_does_not_bring_topics_beyond_the_prefix_into_a_session(world: World, guarded: Caller):
    made = guarded.send("POST", "/v0/watch", {"topics": {OUTSIDE: {}, INSIDE: {}}}, key=FULL).json
    assert set(made["topics"]) == {OUTSIDE, INSIDE}
    cursor = "eyJvdXQubmFtZSI6MCwiaW4ubmFtZSI6MH0"  # {"out.name":0,"in.name":0}
    body = {"topics": {"in.*": {}}, "cursor": cursor}
    assert all(name.startswith("in.") for name in guarded.send("POST", "/v0/watch", body, key=FULL_IN).json["topics"])


def test_names_are_those_of_the_state_that_the_handler_will_find():
    """A pending change takes effect before the handler looks: it must not get past the check in between."""
    engine = open_engine(log=FakeLog())
    limited = caller.Caller("k", Rights(prefixes=("in.",)))
    made = engine.put_topic("in.q", ConfigPatch(type="queue", dead_letter="in.dead"))
    engine.commits.sync()
    made.value()
    caller.authorise(engine, limited, operations.REDRIVE, "in.q", wanted=RedriveRequest())

    engine.put_topic("in.q", ConfigPatch(dead_letter="out.dead"))
    assert engine.topics["in.q"].config.dead_letter == "in.dead", "the change is still pending"
    with pytest.raises(TopicsError, match="does not cover"):
        caller.authorise(engine, limited, operations.REDRIVE, "in.q", wanted=RedriveRequest())


def test_turning_dead_letters_on_counts_and_turning_them_off_does_not():
    engine = open_engine()
    limited = caller.Caller("k", Rights(prefixes=("in.",)))
    engine.put_topic("in.q", ConfigPatch(type="queue", dead_letter="out.dead"))
    engine.flush()
    for patch, allowed in (
        (ConfigPatch(max_deliveries=1), False),
        (ConfigPatch(max_deliveries=1, dead_letter=None), True),
        (ConfigPatch(max_deliveries=0), True),
        (ConfigPatch(dead_letter=None), True),
        (ConfigPatch(ttl_ms=5), True),
    ):
        assert _allows(engine, limited, operations.CONFIGURE_TOPIC, "in.q", patch) == allowed, patch


def _allows(engine: Engine, limited: caller.Caller, operation: Operation, target: str, wanted: Any) -> bool:
    try:
        caller.authorise(engine, limited, operation, target, wanted=wanted)
    except TopicsError:
        return False
    return True


def test_a_caller_without_a_prefix_costs_no_look_at_names():
    def look(*_: Any) -> Any:
        raise AssertionError("looked")

    operation = Operation(name="x", names={"x": look})
    free = caller.Caller("k")
    free.operations |= {operation}
    caller.authorise(open_engine(), free, operation, "out.t", wanted=RouterRequest(source="a", dest="b"))
