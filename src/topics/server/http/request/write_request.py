"""Decoding of write bodies: small ones at once, large ones in steps. Pure.

The decoder cannot be interrupted, and takes 30 to 60 ms for 64 MiB. A body that would take longer, or that the decoder
rejects, is decoded a part of its records at a time (`model/write_outline.py`).
"""

import contextlib
import re
from collections.abc import Generator
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import Decoder

from topics.engine.write.render import check_sizes
from topics.errors import Code, TopicsError, invalid
from topics.model.records import Limits, NewRecord, PlainWriteRequest, WriteRequest
from topics.model.wire import MAX_PLAIN_BODY_BYTES, check_text, check_text_steps
from topics.model.write_outline import is_slow, outline
from topics.server.http.request.unknown_fields import Noted, Notes, RequestDecoder, note

BATCH_BYTES = 512  # a larger request probably has several records
LARGE_BYTES = 256 << 10  # a larger body is decoded in steps


class Batch(Struct, gc=False):
    records: list[NewRecord]


_write_decoder: RequestDecoder[WriteRequest] = RequestDecoder(WriteRequest, writes=True)
_batch_decoder: RequestDecoder[Batch] = RequestDecoder(Batch, writes=True)
_plain_decoder = Decoder(PlainWriteRequest)
_decode_write = _write_decoder.decode
_WHITE = b" \t\r\n"
_INDEX = re.compile(r"\brecords\[(\d+)\]")


def decode_write(body: bytes, noted: Noted) -> WriteRequest:
    """Return the write in a body of at most `LARGE_BYTES`, and note its unknown fields. Raise `invalid_request`.

    A batch is first decoded as plain records, which is faster because optional fields are not looked for.
    """
    if len(body) > BATCH_BYTES:
        if not body.isascii():
            check_text(body)
        with contextlib.suppress(msgspec.MsgspecError, RecursionError):
            return _plain_decoder.decode(body)
    return _decode_write(body, noted)


def decode_steps(
    decoder: RequestDecoder[Any], body: bytes, limits: Limits, noted: Noted, *, plain: Decoder[Any] | None = None
) -> Generator[None, None, Any]:
    """Return the write in a body of any size, in steps, and note its unknown fields.

    `plain` is tried first, because it is faster. Raise also `batch_too_large` and `record_too_large`.
    """
    yield from check_text_steps(body)
    in_parts = is_slow(body)
    if plain is not None and not in_parts:
        try:
            return _checked(plain.decode(body), limits)
        except (msgspec.ValidationError, RecursionError):
            pass
        except msgspec.DecodeError:
            in_parts = b"\\ud" in body or b"\\uD" in body  # if it is a lone surrogate, its part is decoded again
        yield
    if in_parts:
        return (yield from _decode_parts(decoder, body, limits, noted))
    return _checked((yield from decoder.decode_steps(body, noted)), limits)


def _decode_parts(
    decoder: RequestDecoder[Any], body: bytes, limits: Limits, noted: Noted
) -> Generator[None, None, Any]:
    """Decode the records a part at a time, and the rest of the body with `decoder`.

    The parts are cut where records begin. A cut at another position would leave a part that is not JSON.
    """
    found = yield from outline(body, limits)
    around = body[: found.low] + body[found.high :]
    if len(around) > MAX_PLAIN_BODY_BYTES:
        what = f"a write may have {MAX_PLAIN_BODY_BYTES} bytes beside its records, not {len(around)}"
        raise TopicsError(Code.PAYLOAD_TOO_LARGE, what, detail={"max": MAX_PLAIN_BODY_BYTES})
    write = yield from decoder.decode_steps(around, noted)
    records: list[NewRecord] = []
    cuts = [found.low, *found.parts[1:], found.high]
    for low, high in pairwise(cuts):
        part = body[low:high].rstrip(_WHITE)
        if high != found.high:
            if not part.endswith(b","):
                raise invalid("the body is not valid JSON: a comma is missing between two records", field="records")
            part = part[:-1]
        try:
            notes = Notes()
            batch = yield from _batch_decoder.decode_steps(b'{"records":[%b]}' % part, notes)
        except TopicsError as error:
            raise _moved(error, len(records)) from None
        if notes.warnings:
            note(noted, [_moved_text(warning, len(records)) for warning in notes.warnings])
        records += batch.records
        yield
    write.records = records
    return _checked(write, limits)


def _moved(error: TopicsError, by: int) -> TopicsError:
    """Return the error of a part, with the index of its record in the whole body."""
    detail = None if error.detail is None else {
        name: _moved_text(value, by) if isinstance(value, str) else value for name, value in error.detail.items()
    }  # fmt: skip
    return TopicsError(error.code, _moved_text(error.message, by), detail=detail)


def _moved_text(text: str, by: int) -> str:
    return _INDEX.sub(lambda found: f"records[{int(found[1]) + by}]", text)


decode_write_steps = partial(decode_steps, _write_decoder, plain=_plain_decoder)


def _checked(decoded: Any, limits: Limits) -> Any:
    """Return what was decoded. Raise `record_too_large` now, because rendering the record first takes long."""
    if len(decoded.records) <= limits.max_batch_records:
        check_sizes(decoded.records, limits)
    return decoded
