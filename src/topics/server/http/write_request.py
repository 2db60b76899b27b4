"""Decoding of write bodies: small ones at once, large ones in steps. Pure.

The decoder cannot be interrupted. A large body is decoded in one step if that is fast: 64 MiB take 30 to 60 ms. A body
that would take long, or that the decoder rejects, is decoded a part of its records at a time (`model/outline.py`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from topics.engine.write.render import check_sizes
from topics.errors import Code, TopicsError, invalid
from topics.model import surrogates
from topics.model.records import Limits, NewRecord, PlainWriteRequest, WriteRequest
from topics.model.wire import MAX_PLAIN_BODY_BYTES, check_text, decode_body, decode_error
from topics.model.write_outline import is_slow, outline

BATCH_BYTES = 1 << 10  # a larger request probably has many records
LARGE_BYTES = 256 << 10  # a larger body is decoded in steps


class Batch(Struct, gc=False):
    """A part of the records of a write."""

    records: list[NewRecord]


_decode_write = msgspec.json.Decoder(WriteRequest)
_decode_plain = msgspec.json.Decoder(PlainWriteRequest)
_decode_batch = msgspec.json.Decoder(Batch)
_WHITE = b" \t\r\n"
_INDEX = re.compile(r"\brecords\[(\d+)\]")


def decode_write(body: bytes) -> WriteRequest:
    """Return the write in a body of at most `LARGE_BYTES`. Raise `invalid_request`.

    A batch is first decoded as plain records, which is faster because optional fields are not looked for.
    """
    write: WriteRequest
    if len(body) > BATCH_BYTES:
        with contextlib.suppress(TopicsError):
            write = decode_body(_decode_plain, body)
            return write
    write = decode_body(_decode_write, body, surrogates.decode)
    return write


def decode_write_steps(body: bytes, limits: Limits) -> Generator[None, None, WriteRequest]:
    """Return the write in a body of any size, in steps. Raise also `batch_too_large` and `record_too_large`."""
    write: WriteRequest = yield from decode_steps((_decode_plain, _decode_write), body, limits)
    return write


def decode_steps(
    decoders: Sequence[msgspec.json.Decoder[Any]], body: bytes, limits: Limits
) -> Generator[None, None, Any]:
    """Return the result of the first decoder that accepts the body, in steps. Raise the error of the last one."""
    check_text(body)
    if is_slow(body):
        return (yield from _decode_parts(decoders[-1], body, limits))
    try:
        for decoder in decoders[:-1]:
            with contextlib.suppress(msgspec.ValidationError):
                return _checked(decoder.decode(body), limits)
            yield
        return _checked(decoders[-1].decode(body), limits)
    except (msgspec.ValidationError, RecursionError) as error:
        raise decode_error(error, decoders[-1].type) from None
    except msgspec.DecodeError as error:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise decode_error(error, decoders[-1].type) from None
    return (yield from _decode_parts(decoders[-1], body, limits))


def _decode_parts(decoder: msgspec.json.Decoder[Any], body: bytes, limits: Limits) -> Generator[None, None, Any]:
    """Decode the records a part at a time, and the rest of the body with `decoder`.

    The parts are cut where records begin. A cut at another position would leave a part that is not JSON.
    """
    found = yield from outline(body, limits)
    around = body[: found.low] + body[found.high :]
    if len(around) > MAX_PLAIN_BODY_BYTES:
        what = f"a write may have {MAX_PLAIN_BODY_BYTES} bytes beside its records, not {len(around)}"
        raise TopicsError(Code.PAYLOAD_TOO_LARGE, what, detail={"max": MAX_PLAIN_BODY_BYTES})
    write = yield from _decode_or_rescue(decoder, around)
    records: list[NewRecord] = []
    cuts = [found.low, *found.parts[1:], found.high]
    for low, high in pairwise(cuts):
        part = body[low:high].rstrip(_WHITE)
        if high != found.high:
            if not part.endswith(b","):
                raise invalid("the body is not valid JSON: a comma is missing between two records", field="records")
            part = part[:-1]
        try:
            batch: Batch = yield from _decode_or_rescue(_decode_batch, b'{"records":[%b]}' % part)
        except TopicsError as error:
            raise _moved(error, len(records)) from None
        records += batch.records
        yield
    write.records = records
    return _checked(write, limits)


def _decode_or_rescue(decoder: msgspec.json.Decoder[Any], text: bytes) -> Generator[None, None, Any]:
    """Return the decoded text, even with escapes that the decoder rejects. Raise `invalid_request`."""
    try:
        try:
            return decoder.decode(text)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            rescued = yield from surrogates.decode_steps(decoder, text)
            if rescued is None:
                raise
            return rescued
    except (msgspec.MsgspecError, RecursionError) as error:
        raise decode_error(error, decoder.type) from None


def _moved(error: TopicsError, by: int) -> TopicsError:
    """Return the error of a part, with the index of its record in the whole body."""

    def moved(text: str) -> str:
        return _INDEX.sub(lambda found: f"records[{int(found[1]) + by}]", text)

    detail = None if error.detail is None else {
        name: moved(value) if isinstance(value, str) else value for name, value in error.detail.items()
    }  # fmt: skip
    return TopicsError(error.code, moved(error.message), detail=detail)


def _checked(decoded: Any, limits: Limits) -> Any:
    """Return what was decoded. Raise `record_too_large` now, because rendering the record first takes long."""
    if len(decoded.records) <= limits.max_batch_records:
        check_sizes(decoded.records, limits)
    return decoded
