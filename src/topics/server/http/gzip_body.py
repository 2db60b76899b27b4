"""gzip in both directions (RFC 9110 section 8.4.1.3), with a bound on what a body may unpack to."""

import functools
import zlib
from collections import deque
from collections.abc import Callable, Iterable

from topics.errors import Code, TopicsError, invalid
from topics.server.http.messages import Body

MIN_GZIP_BYTES = 1024  # below it the header and the client's work outweigh what is saved
INLINE_BYTES = 16 * 1024  # about 0.2 ms of the loop's time; more goes to a thread (zlib releases the interpreter)

_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window in a gzip wrapper
_LEVEL = 1  # JSON shrinks to a fifth at level 1 already; level 6 takes three times as long for a tenth less
_STEP_BYTES = 256 * 1024  # output of one step
_SLICE_BYTES = 4 * 1024 * 1024  # output of one stay on a thread
_INPUT_BYTES = 16 * 1024  # input of one step: zlib copies what a member leaves unused
_MAX_MEMBERS = 4096


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether an Accept-Encoding value allows gzip: named with a weight above 0, or not named and covered by `*`."""
    if not accept_encoding:
        return False
    wildcard = False
    for member in accept_encoding.lower().split(b","):
        coding, *parameters = (part.strip() for part in member.split(b";"))
        if coding in (b"gzip", b"x-gzip"):
            return _weight(parameters) > 0
        if coding == b"*":
            wildcard = _weight(parameters) > 0
    return wildcard


def _weight(parameters: list[bytes]) -> float:
    """The q value; a malformed one counts as 0, so that nobody is sent what they may have excluded."""
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


@functools.lru_cache(maxsize=64)
def compressible(content_type: bytes) -> bool:
    return content_type.startswith(b"text/") or any(
        word in content_type for word in (b"json", b"javascript", b"xml", b"wasm")
    )


def gzip(body: Body) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    parts: Iterable[bytes | memoryview] = (body,) if isinstance(body, bytes) else body
    return b"".join([*(packer.compress(part) for part in parts), packer.flush()])


class Gunzip:
    """Unpacks one body step by step, so that a short one is done at once and a long one can go on in a thread."""

    __slots__ = ("_at", "_input", "_limit_bytes", "_members", "_packed", "_parts", "_stream", "size_bytes")

    def __init__(self, packed: bytes, limit_bytes: int) -> None:
        self._packed = packed
        self._limit_bytes = limit_bytes
        self._at = 0
        self._input = b""
        self._members = 1
        # Parts that are joined at the end: many bodies that grow side by side in one piece each tear holes in the heap.
        self._parts: list[bytes] = []
        self.size_bytes = 0  # unpacked so far
        self._stream = zlib.decompressobj(_GZIP_WINDOW)

    def advance(self) -> bytes | None:
        """Unpack some megabytes more: the body once it is whole, None before. For a thread."""
        stop_bytes = self.size_bytes + _SLICE_BYTES
        while self.size_bytes < stop_bytes:
            body = self.step()
            if body is not None:
                return body
        return None

    def step(self) -> bytes | None:
        """Unpack a little more: the body once it is whole, None before. Raises 400 for damage and 413 for too much."""
        starved = not self._input and not self._refill()
        try:
            got = self._stream.decompress(self._input, min(_STEP_BYTES, self._limit_bytes + 1 - self.size_bytes))
        except zlib.error:
            raise invalid("the body is not valid gzip") from None
        if got:
            self._parts.append(got)
            self.size_bytes += len(got)
        if self.size_bytes > self._limit_bytes:
            raise TopicsError(Code.PAYLOAD_TOO_LARGE, f"the body unpacks to more than {self._limit_bytes} bytes")
        if self._stream.eof:
            return self._next_member()
        self._input = self._stream.unconsumed_tail
        if starved and not got:
            raise invalid("the gzip body is cut short")
        return None

    def _refill(self) -> bool:
        self._input = self._packed[self._at : self._at + _INPUT_BYTES]
        self._at += len(self._input)
        return bool(self._input)

    def _next_member(self) -> bytes | None:
        """A gzip file may be several in a row (RFC 1952 section 2.2). They are counted: an empty one costs us far more
        than it costs the sender."""
        self._input = self._stream.unused_data
        if not self._input and not self._refill():
            parts, self._parts = self._parts, []
            return b"".join(parts)
        self._members += 1
        if self._members > _MAX_MEMBERS:
            raise invalid(f"the gzip body has more than {_MAX_MEMBERS} members")
        self._stream = zlib.decompressobj(_GZIP_WINDOW)
        return None


class Turns:
    """Work that only so many may do at a time, the others in the order in which they came.

    Bodies that are unpacked side by side, a slice of each at a time, would all be in memory half done.
    """

    __slots__ = ("_left", "_waiting")

    def __init__(self, most: int) -> None:
        self._left = most
        self._waiting: deque[Callable[[], bool]] = deque()

    def begin(self, work: Callable[[], bool]) -> None:
        """Call `work` when its turn has come. It returns False if there is nothing to do; else `end` follows."""
        self._waiting.append(work)
        self._next()

    def end(self) -> None:
        self._left += 1
        self._next()

    def _next(self) -> None:
        while self._left > 0 and len(self._waiting) > 0:
            self._left -= 1
            if not self._waiting.popleft()():
                self._left += 1
