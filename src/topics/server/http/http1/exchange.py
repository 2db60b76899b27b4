"""A request and its answer on their way through a connection. Pure."""

import msgspec

from topics.server.http.messages import Deferred, Response, Stream
from topics.server.http.request.head import RequestHead


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
