"""The answer to a request whose handling raised an error."""

from topics import logs
from topics.errors import Code, TopicsError, storage_unavailable
from topics.server.http.messages import Request, Response, error_response

log = logs.Log("http")


def failure(request: Request, error: BaseException) -> Response:
    """Return the answer to a request whose handling raised `error`: 500 and a log line unless it is a `TopicsError`.

    An OSError is a file that cannot be read now: 503.
    """
    if isinstance(error, TopicsError):
        return error_response(error, started_ns=request.started_ns)
    log.failure("request_failed", error, method=request.method)
    if isinstance(error, OSError):
        known = storage_unavailable(error)
    else:
        known = TopicsError(Code.INTERNAL, "the server made a mistake; its log says where")
    return error_response(known, started_ns=request.started_ns)
