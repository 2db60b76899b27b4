"""Routes: one row per method and path, read by dispatch, permissions and the OpenAPI document.

An answer has warnings about what the request has and the server ignores:

    object    `"warnings": ["unknown field \\"from\\" ignored; did you mean \\"from_seq\\"?"]` is its last member
    the rest  streams, text and documents have the same list as the header `topics-warnings`, JSON in ASCII

Error answers have no warnings. A warning is added to a copy: an answer may be cached or shared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from msgspec import Struct, structs

from topics.engine.steps import Steps
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError, invalid
from topics.model.names import AUDIT
from topics.model.records import Limits
from topics.model.wire import UnknownField
from topics.server.access.caller import Reader
from topics.server.access.operations import READ_AUDIT, Operation, Scope, read_only
from topics.server.api.services import Services, Startup
from topics.server.http.browser_origin import WARNINGS
from topics.server.http.messages import JSON, NO_ROUTE, TIMED, Answer, Request, Response, Timings, changed
from topics.server.http.request import query_string
from topics.server.http.request.unknown_fields import Noted, RequestDecoder, note, warning_of
from topics.server.limits.loop_holds import Cause

if TYPE_CHECKING:
    from topics.engine.durable.standby import Standby
from itertools import islice
from typing import TypeVar

from topics.engine.state.name_index import NameIndex
from topics.server.loop.answer import json_answer, performance

# Cached paths. The longest name of a topic has 255 characters, three bytes each if percent-encoded.
KNOWN_PATHS, KNOWN_PATH_BYTES = 32_768, 1024
_PARAMETER = re.compile(r"\\{(\w+)\\}")  # in an escaped path
TOKEN = "token"  # the query parameter with the key of a caller


class Parameter(Struct, frozen=True):
    name: str
    type: type
    default: Any = None
    required: bool = False


class Route(Struct, frozen=True, eq=False):
    method: str
    path: str  # `{topic}` matches one percent-decoded segment
    handler: Callable[[Services, Call], Answer]
    operation: Operation  # also says what a key needs
    body: Any = None  # request type; None if a body is ignored
    decode: Callable[[bytes, Noted], Any] | None = None  # of `body`, which it is made from if it is not given
    # The same for a body larger than `LARGE_BYTES`.
    decode_steps: Callable[[bytes, Limits, Noted], Steps[Any]] | None = None
    answer: Any = None  # the type of the answer, or the media type of one that is no JSON object
    statuses: tuple[int, ...] = (200,)
    answers: dict[int, Any] = {}  # status → type of the answer; of `statuses` if it is not given
    query: tuple[Parameter, ...] = ()
    # Answers before the data is recovered, without an engine. None: such a request is refused with `not_ready`.
    while_recovering: Callable[[Startup, Call], Answer] | None = None
    probe: bool = False  # answered without a key unless `probe_auth` is set
    signed: bool = False  # needs no key: the handler checks a signature
    console: bool = False  # part of the web console: only served if the settings turn it on
    stream: bool = False  # counts as a long-lived connection
    timings: Timings = NO_ROUTE  # shared by all rows of this method and path
    query_token: bool = False  # accepts its key as `?token=`, because browsers cannot send a header there

    def __post_init__(self) -> None:
        structs.force_setattr(
            self, "timings", TIMED.setdefault((self.method, self.path), Timings(self.method, self.path))
        )
        if self.body is not None and self.decode is None:
            structs.force_setattr(self, "decode", RequestDecoder[Any](self.body).decode)
        if not self.answers:
            structs.force_setattr(self, "answers", dict.fromkeys(self.statuses, self.answer))

    @property
    def scope(self) -> Scope:
        return self.operation.scope

    @property
    def is_strict(self) -> bool:
        """Whether unknown fields and parameters are refused: the request deletes, configures or moves."""
        return self.method in ("PUT", "DELETE") or (
            self.body is not None and self.body.__struct_config__.forbid_unknown_fields
        )


def at_any_time(answer: Callable[[Startup, Call], Answer], name: str = "") -> dict[str, Any]:
    """Return the fields of a route that needs no recovered data: both handlers are `answer`. `name` is another name."""

    @wraps(answer)
    def handler(services: Services, call: Call) -> Answer:
        return answer(services.startup, call)

    handler.__name__ = name or handler.__name__
    return {"handler": handler, "while_recovering": answer}


def in_slices(
    cause: Cause = Cause.REQUEST,
) -> Callable[[Callable[[Services, Call], Steps[Answer]]], Callable[[Services, Call], Answer]]:
    """Return a decorator for a handler whose answer takes long: it is a generator, and runs in slices."""

    def decorate(steps: Callable[[Services, Call], Steps[Answer]]) -> Callable[[Services, Call], Answer]:
        @wraps(steps)
        def handler(services: Services, call: Call) -> Answer:
            return services.slices.answer(call.request, steps(services, call), cause)

        return handler

    return decorate


class Call(Struct, gc=False):
    request: Request
    route: Route
    params: dict[str, str]  # shared between calls to the same path
    caller: Any = None  # a `Caller`; never None once the call is admitted
    typed: bool = False  # whether the content type has been checked
    wanted: Any = None  # the decoded body, if authorisation needed it
    warnings: list[str] | None = None  # for the answer: what the request has and the server ignores

    def reader(self, at_ms: int) -> Reader:
        """Return what is kept of this call as the last one of a consumer: the request itself may be large."""
        request = self.request
        return Reader(self.caller, request.peer, request.headers.get(b"user-agent", b""), at_ms)

    def body(self) -> Any:
        if self.wanted is not None:
            return self.wanted
        assert self.route.decode is not None
        return self.route.decode(self.request.body, self)


class RouteTable:
    def __init__(self, routes: list[Route]) -> None:
        self.routes = routes
        self.known: dict[bytes, tuple[dict[str, Route], dict[str, str]]] = {}  # by path: a cache
        by_path: dict[str, dict[str, Route]] = {}
        for route in routes:
            methods = by_path.setdefault(route.path, {})
            assert route.method not in methods, f"two rows for {route.method} {route.path}"
            methods[route.method] = route
        # By how many parts the paths have, and the last one if it is no parameter.
        self._patterns: dict[tuple[int, bytes], list[tuple[re.Pattern[bytes], dict[str, Route]]]] = {}
        for path, methods in by_path.items():
            last = path.rpartition("/")[2]
            key = path.count("/"), b"" if last.startswith("{") else last.encode()
            pattern = re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", re.escape(path)).encode())
            self._patterns.setdefault(key, []).append((pattern, methods))

    def find(self, request: Request) -> Call:
        """Return the call. Raise 404 for an unknown path, 405 for a known path with another method."""
        known = self.known.get(request.path)
        if known is not None and (route := known[0].get(request.method)) is not None:
            return Call(request, route, known[1])
        path = request.path
        routes, params = self._match(path)
        method = request.method
        if params.get("topic") == AUDIT:
            routes = _reading(routes)
        route = routes.get(method)
        if route is None:
            if method == "HEAD" and "GET" in routes:
                route = routes["GET"]
            else:
                allowed = sorted({*routes, *({"HEAD"} if "GET" in routes else ())})
                what = f"this path does not take {method[:32]}; it takes {', '.join(allowed)}"
                raise TopicsError(Code.METHOD_NOT_ALLOWED, what, detail={"allow": allowed})
        if len(path) <= KNOWN_PATH_BYTES:
            if len(self.known) >= KNOWN_PATHS:
                self.known.clear()
            self.known[path] = routes, params
        return Call(request, route, params)

    def _match(self, path: bytes) -> tuple[dict[str, Route], dict[str, str]]:
        """Return the routes of a path by their methods, and its parameters. Raise 404 for an unknown path."""
        parts, last = path.count(b"/"), path.rpartition(b"/")[2]
        for pattern, routes in (*self._patterns.get((parts, last), ()), *self._patterns.get((parts, b""), ())):
            if (match := pattern.fullmatch(path)) is not None:
                return routes, {name: _decode(part) for name, part in match.groupdict().items()}
        raise TopicsError(Code.NOT_FOUND, "this path does not exist; see /v0/openapi.json")


def _reading(routes: dict[str, Route]) -> dict[str, Route]:
    """Return the routes that read the audit topic. Raise if there are none."""
    reads = (route for route in routes.values() if route.scope is Scope.READ)
    found = {route.method: structs.replace(route, operation=READ_AUDIT) for route in reads}
    if not found:
        raise read_only()
    return found


def _decode(part: bytes) -> str:
    try:
        return (unquote_to_bytes(part) if b"%" in part else part).decode()
    except UnicodeDecodeError:
        raise invalid("a part of the path is not UTF-8") from None


_END = b"}\n"
_PERFORMANCE = b'"performance":{'


def note_parameters(call: Call) -> None:
    """Note the query parameters that the route does not have.

    Raise `UnknownField` where the request deletes, configures or moves. A query string that is not valid has no
    parameters: the handler refuses it if it has any.
    """
    route = call.route
    known = [*(row.name for row in route.query), *([TOKEN] if route.query_token else [])]
    try:
        unknown = [name for name in query_string.parse(call.request.query) if name not in known]
    except TopicsError:
        return
    if unknown and route.is_strict:
        raise UnknownField(unknown[0], "", known, kind="query parameter")
    note(call, [warning_of(name, known, kind="query parameter") for name in unknown])


def noted(services: Services, call: Call, ticket: Ticket, **detail: Any) -> Ticket:
    """Return the ticket of a change, which the audit topic records, unless nothing changes."""
    # A verb may have synced its ticket. One that was resolved without a commit has no effect.
    if not ticket.done or (ticket.apply is not None and ticket.error is None):
        named = {part: name for part, name in call.params.items() if part == "consumer"}
        name = next((name for part, name in call.params.items() if part not in named), "")
        address = call.request.peer.rpartition(":")[0]
        services.audit.note(call.route.operation.name, name, call.caller.name, address, **named, **detail)
    return ticket


def with_warnings(call: Call, answer: Answer) -> Answer:
    """Return the answer with the warnings of its request. The call forgets them, so that they are added once."""
    return answer if call.warnings is None else changed(answer, partial(_marked, call))


def with_lag(answer: Answer, standby: Standby) -> Answer:
    """Return the answer of a standby with its lag in the field `performance`, if it has that."""
    return changed(answer, partial(_lagging, standby))


def _lagging(standby: Standby, response: Response) -> Response:
    parts: list[bytes | memoryview] = [response.body] if isinstance(response.body, bytes) else list(response.body)
    if response.content_type == JSON:
        for at in range(len(parts) - 1, max(len(parts) - 3, -1), -1):  # no data of a client comes after the field
            before, found, after = bytes(parts[at]).rpartition(_PERFORMANCE)
            if found:
                parts[at] = b'%b%b"replica_lag_ms":%d,%b' % (before, found, standby.lag_ms, after)
                return structs.replace(response, body=parts)
    return response


def _marked(call: Call, response: Response) -> Response:
    """Return the response with the warnings that were not added yet. An error is returned as it is."""
    warnings, call.warnings = call.warnings, None
    if warnings is None or response.status >= 400:
        return response
    kind = call.route.answers.get(response.status)
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return response.with_fields((WARNINGS, json.dumps(warnings).encode()))
    body = response.body
    parts: list[bytes | memoryview] = [body] if isinstance(body, bytes) else list(body)
    last = bytes(parts.pop())
    assert last.endswith(_END), "every JSON answer ends with a newline"
    parts.append(b'%b,"warnings":%b}\n' % (last[: -len(_END)], json.dumps(warnings).encode()))
    return structs.replace(response, body=parts)


ROWS_PER_STEP = 25  # one takes 4 to 90 µs

T = TypeVar("T")


def page_answer(
    call: Call,
    names: NameIndex,
    find: Callable[[str], T | None],
    summary: Callable[[T], Any],
    answer: Callable[..., Any],
) -> Steps[Answer]:
    """Return a page of what `find` returns for the names that the caller may see; None leaves a row out.

    Looks at the rows of the page, and at those that are left out, `ROWS_PER_STEP` in a step. Rows that are created or
    deleted between two steps may be on the page or not.
    """
    found = query_string.parse(call.request.query)
    after, limit, prefix = query_string.cursor_after(found), query_string.page_size(found), found.get("prefix", "")
    prefixes, page, last, more = call.caller.prefixes, list[Any](), "", False
    # Bound: each round looks at names behind those of the round before.
    while not more and (some := list(islice(names.visible(prefixes, prefix=prefix, after=after), ROWS_PER_STEP))):
        after = some[-1]
        for name in some:
            if (row := find(name)) is not None:
                if more := len(page) == limit:
                    break
                page.append(summary(row))
                last = name
        yield None
    return json_answer(200, answer(page, performance(call.request), query_string.cursor(last) if more else None))
