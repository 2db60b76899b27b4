"""Unpacking of gzip bodies of requests (RFC 9110 section 8.4.1.3), with a bound on the unpacked size. Pure."""

import zlib

from topics.errors import Code, TopicsError, invalid

_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window in a gzip wrapper
_STEP_BYTES = 256 * 1024  # output of one step
_INPUT_BYTES = 16 * 1024  # input of one step: zlib copies what a member leaves unused
_MAX_MEMBERS = 4096


class Gunzip:
    """Unpacks one body in steps: a short body in the first one, others in a thread."""

    __slots__ = ("_at", "_input", "_limit_bytes", "_members", "_packed", "_parts", "_stream", "size_bytes")

    def __init__(self, packed: bytes, limit_bytes: int) -> None:
        self._packed = packed
        self._limit_bytes = limit_bytes
        self._at = 0
        self._input = b""
        self._members = 1
        # Parts are joined at the end: many buffers that grow at the same time fragment the heap.
        self._parts: list[bytes] = []
        self.size_bytes = 0  # unpacked so far
        self._stream = zlib.decompressobj(_GZIP_WINDOW)

    def step(self) -> bytes | None:
        """Unpack a little more. Return the body once it is whole, else None. Raise `TopicsError` for damage or size."""
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
        if self._stream.eof:  # of a member. A body may have several (RFC 1952 section 2.2).
            self._input = self._stream.unused_data
            if not self._input and not self._refill():
                parts, self._parts = self._parts, []
                return b"".join(parts)
            self._members += 1
            if self._members > _MAX_MEMBERS:  # an empty member costs the server far more than the client
                raise invalid(f"the gzip body has more than {_MAX_MEMBERS} members")
            self._stream = zlib.decompressobj(_GZIP_WINDOW)
            return None
        self._input = self._stream.unconsumed_tail
        if starved and not got:
            raise invalid("the gzip body is cut short")
        return None

    def _refill(self) -> bool:
        self._input = self._packed[self._at : self._at + _INPUT_BYTES]
        self._at += len(self._input)
        return bool(self._input)
