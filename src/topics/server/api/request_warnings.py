"""Warnings about what a request has and the server ignores, in the answer to the request.

    object    `"warnings": ["unknown field \\"from\\" ignored; did you mean \\"from_seq\\"?"]` is its last member
    the rest  streams, text and documents have the same list as the header `topics-warnings`, JSON in ASCII

Error answers have no warnings. A warning is added to a copy: an answer may be cached or shared.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec import Struct

from topics.errors import TopicsError
from topics.model.unknown_fields import note, warning_of
from topics.model.wire import UnknownField
from topics.server.http.cors import WARNINGS
from topics.server.http.messages import Answer, Deferred, Response, Stream
from topics.server.http.request import query_string

if TYPE_CHECKING:
    from topics.server.api.route import Call

_END = b"}\n"


def note_parameters(call: Call) -> bool:
    """Note the query parameters that the route does not have. Return whether there are none.

    Raise `UnknownField` where the request deletes, configures or moves. A query string that is not valid has no
    parameters: the handler refuses it if it has any.
    """
    route = call.route
    known = route.parameter_names()
    try:
        unknown = [name for name in query_string.parse(call.request.query) if name not in known]
    except TopicsError:
        return False
    if unknown and route.is_strict:
        raise UnknownField(unknown[0], "", known, kind="query parameter")
    note(call, [warning_of(name, known, kind="query parameter") for name in unknown])
    return not unknown


def with_warnings(call: Call, answer: Answer) -> Answer:
    """Return the answer with the warnings of its request. The call forgets them, so that they are added once."""
    if call.warnings is None:
        return answer
    if isinstance(answer, Deferred):
        later = Deferred(on_cancel=answer.cancel, on_hurry=answer.hurry)
        answer.then(lambda response: later.resolve(_marked(call, response)))
        return later
    if isinstance(answer, Stream):
        answer.head = _with_header(answer.head, call.warnings)
        return answer
    return _marked(call, answer)


def _marked(call: Call, response: Response) -> Response:
    """Return the response with the warnings that were not added yet. An error is returned as it is."""
    warnings, call.warnings = call.warnings, None
    if warnings is None or response.status >= 400:
        return response
    kind = call.route.answers.get(response.status)
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return _with_header(response, warnings)
    body = response.body
    parts: list[bytes | memoryview] = [body] if isinstance(body, bytes) else list(body)
    last = bytes(parts.pop())
    assert last.endswith(_END), "every JSON answer ends with a newline"
    parts.append(b'%b,"warnings":%b}\n' % (last[: -len(_END)], json.dumps(warnings).encode()))
    whole = parts if len(parts) > 1 else bytes(parts[0])
    return Response(response.status, whole, response.content_type, response.headers, response.sent)


def _with_header(response: Response, warnings: list[str]) -> Response:
    headers = (*response.headers, (WARNINGS, json.dumps(warnings).encode()))
    return Response(response.status, response.body, response.content_type, headers, response.sent)
