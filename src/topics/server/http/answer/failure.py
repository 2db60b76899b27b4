"""The answer to a request whose handling raised an error."""

from topics import logs
from topics.errors import Code, TopicsError
from topics.server.http.messages import Request, Response, error_response

log = logs.Log("http")


def failure(request: Request, error: BaseException) -> Response:
    """Return the answer to a request whose handling raised `error`: 500 and a log line unless it is a `TopicsError`."""
    if isinstance(error, TopicsError):
        return error_response(error, started_ns=request.started_ns)
    log.failure("request_failed", error, method=request.method)
    internal = TopicsError(Code.INTERNAL, "the server made a mistake; its log says where")
    return error_response(internal, started_ns=request.started_ns)
