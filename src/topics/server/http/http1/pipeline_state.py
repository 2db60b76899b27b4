"""States of one HTTP connection, and the table of the changes between them. Pure."""

from enum import IntEnum, auto


class ConnectionState(IntEnum):
    """What a connection is doing. An IntEnum, because the hash of an Enum's member is computed in Python."""

    IDLE = auto()  # no request is in progress: the fast path may take the next read
    AWAITING = auto()  # one request of the fast path waits for a deferred answer, and nothing else has happened since
    ACTIVE = auto()  # requests are parsed, handled and answered by the pipeline
    FINISHING = auto()  # no further request is read; the answers that are due still go out
    UPGRADING = auto()  # an upgrade was granted and waits for the answers before it; input is kept for the new protocol
    STREAMING = auto()  # a stream or an upgraded protocol owns the connection
    LINGERING = auto()  # the last answer is written and our side is shut; input is discarded until the client closes
    CLOSING = auto()  # the transport closes once everything written has left
    ABORTED = auto()  # the transport is to be reset: a hook failed, or the client was too slow
    CLOSED = auto()  # the connection is lost


# Other modules use these names: `ConnectionState.IDLE` takes 0.2 µs in Python 3.11, and a request needs a dozen.
IDLE, AWAITING, ACTIVE, FINISHING, UPGRADING, STREAMING, LINGERING, CLOSING, ABORTED, CLOSED = ConnectionState


class ConnectionEvent(IntEnum):
    DEFER = auto()  # the answer to a request of the fast path comes later
    ANSWER = auto()  # that answer is written
    WORK = auto()  # something happens that the fast path cannot do
    REST = auto()  # everything is answered, and the next request has not begun
    LAST = auto()  # no request after those in the queue is read
    GRANT = auto()  # an upgrade is granted
    OPEN = auto()  # the answer of the stream is next in order
    SHUT = auto()  # the last answer is written, and the client may still be sending
    CLOSE = auto()  # the connection ends once everything written has left
    ABORT = auto()  # the connection ends at once
    LOSE = auto()  # the transport has ended


DEFER, ANSWER, WORK, REST, LAST, GRANT, OPEN, SHUT, CLOSE, ABORT, LOSE = ConnectionEvent


class Ending(IntEnum):
    """Why a connection ends after the requests that have begun. A later member outranks an earlier one."""

    NOT_ENDING = 0
    DRAIN = 1  # the server stops: a request that has begun is still read to its end
    EOF = 2  # the client has shut its side: nothing more can come


NOT_ENDING, DRAIN, EOF = Ending


_OPEN_STATES = (IDLE, AWAITING, ACTIVE, FINISHING, UPGRADING, STREAMING, LINGERING, CLOSING)

TRANSITIONS: dict[tuple[ConnectionState, ConnectionEvent], ConnectionState] = {
    (IDLE, DEFER): AWAITING,
    (AWAITING, ANSWER): IDLE,
    (IDLE, WORK): ACTIVE,
    (AWAITING, WORK): ACTIVE,
    (ACTIVE, WORK): ACTIVE,
    (ACTIVE, REST): IDLE,
    (ACTIVE, LAST): FINISHING,
    (UPGRADING, LAST): FINISHING,
    (FINISHING, LAST): FINISHING,
    (ACTIVE, GRANT): UPGRADING,
    (FINISHING, GRANT): FINISHING,  # the request asked to close after it
    (FINISHING, OPEN): STREAMING,
    (UPGRADING, OPEN): STREAMING,
    (IDLE, SHUT): LINGERING,
    (ACTIVE, SHUT): LINGERING,
    (FINISHING, SHUT): LINGERING,
    (UPGRADING, SHUT): LINGERING,
    (STREAMING, SHUT): LINGERING,  # the upgraded protocol has ended
    **{(state, CLOSE): CLOSING for state in _OPEN_STATES},
    **{(state, ABORT): ABORTED for state in _OPEN_STATES},
    # A hook may fail in the middle of anything: whatever follows changes nothing more.
    **{(ABORTED, event): ABORTED for event in ConnectionEvent},
    **{(CLOSED, event): CLOSED for event in ConnectionEvent},
    **{(state, LOSE): CLOSED for state in ConnectionState},
}

# Input that arrives in these states is dropped.
DISCARDING = frozenset((FINISHING, LINGERING, CLOSING, ABORTED, CLOSED))
