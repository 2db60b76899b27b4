"""gzip of answers (RFC 9110 section 8.4.1.3): which answers shrink, and their compressed bodies. Pure."""

import functools
import zlib
from collections.abc import Iterable

from topics.server.http.answer.head import BODILESS
from topics.server.http.messages import Body, Response

MIN_GZIP_BYTES = 1024  # below it the header and the work of the client cost more than is saved
INLINE_BYTES = 16 * 1024  # about 0.2 ms of the event loop; longer bodies go to a thread (zlib releases the interpreter)

_GZIP_WINDOW = 31  # zlib's code for a 32 KiB window in a gzip wrapper
_LEVEL = 1  # JSON shrinks to a fifth at level 1 already; level 6 takes three times as long for a tenth less


def may_compress(response: Response) -> bool:
    """Return whether gzip may be applied to an answer: its type shrinks, and it is not encoded already."""
    if response.status in BODILESS or not compressible(response.content_type):
        return False
    return not response.headers or all(name.lower() != b"content-encoding" for name, _ in response.headers)


@functools.lru_cache(maxsize=64)
def compressible(content_type: bytes) -> bool:
    """Return whether bodies of this type shrink."""
    return content_type.startswith(b"text/") or any(
        word in content_type for word in (b"json", b"javascript", b"xml", b"wasm")
    )


def gzip(body: Body) -> bytes:
    """Return the compressed body."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)
    parts: Iterable[bytes | memoryview] = (body,) if isinstance(body, bytes) else body
    return b"".join([*(packer.compress(part) for part in parts), packer.flush()])
