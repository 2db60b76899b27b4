"""A request and its answer on their way through a connection."""

import msgspec

from topics import logs
from topics.errors import Code, TopicsError
from topics.server.http.gzip_body import compressible
from topics.server.http.messages import Deferred, Request, Response, Stream, error_response
from topics.server.http.request_head import RequestHead
from topics.server.http.response_head import BODILESS

log = logs.Log("http")


class Exchange(msgspec.Struct, eq=False):
    """A request and its answer, until the answer has gone out."""

    head: RequestHead
    answer: Response | Stream | None = None
    vary: bytes = b""
    deferred: Deferred | None = None
    held_bytes: int = 0  # size of an answer that waits for the answers before it
    input_bytes: int = 0  # size of the request, charged to the memory budget until the answer is there
    unpacking: bool = False  # a thread unpacks the body
    dropped: bool = False  # no client waits for the answer


def may_compress(response: Response) -> bool:
    """Return whether gzip may be applied to an answer: its type shrinks, and it is not encoded already."""
    if response.status in BODILESS or not compressible(response.content_type):
        return False
    return not response.headers or all(name.lower() != b"content-encoding" for name, _ in response.headers)


def failure(request: Request, error: BaseException) -> Response:
    """Return the answer to a request whose handling raised `error`: 500 and a log line unless it is a `TopicsError`."""
    if isinstance(error, TopicsError):
        return error_response(error, started_ns=request.started_ns)
    log.failure("request_failed", error, method=request.method)
    internal = TopicsError(Code.INTERNAL, "the server made a mistake; its log says where")
    return error_response(internal, started_ns=request.started_ns)
