"""Decoding of write bodies: small ones at once, large ones in steps. Pure.

A body of 64 MiB can hold six million records, or one string of thirty million escapes. The decoder cannot be
interrupted and takes up to a second for either, often only to refuse it. Such a body, and one that the decoder rejects,
is scanned first, a record at a time: the decoder finds the end of a value, and makes no objects, if it is asked for a
raw one. The records are then decoded in parts.
"""

import json
import re
from collections.abc import Generator
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any

import msgspec
import xxhash
from msgspec import Raw, Struct
from msgspec.json import Decoder

from topics.engine.write.render import check_sizes
from topics.errors import Code, TopicsError, invalid
from topics.model.records import (
    Limits,
    NewRecord,
    PlainWriteRequest,
    WriteRequest,
    record_too_large,
    too_many_records,
)
from topics.model.wire import MAX_PLAIN_BODY_BYTES, body_too_large, check_text, check_text_steps
from topics.server.http.request.unknown_fields import Noted, Notes, RequestDecoder, note

BATCH_BYTES = 256  # a larger request probably has several records
LARGE_BYTES = 256 << 10  # a larger body is decoded in steps


class Batch(Struct, gc=False):
    records: list[NewRecord]


_write_decoder: RequestDecoder[WriteRequest] = RequestDecoder(WriteRequest, writes=True)
_batch_decoder: RequestDecoder[Batch] = RequestDecoder(Batch, writes=True)
_plain_decoder = Decoder(PlainWriteRequest)
_decode_write, _plain_decode = _write_decoder.decode, _plain_decoder.decode
_WHITE = b" \t\r\n"
_INDEX = re.compile(r"\brecords\[(\d+)\]")


def decode_write(body: bytes, noted: Noted) -> WriteRequest:
    """Return the write in a body of at most `LARGE_BYTES`, and note its unknown fields. Raise `invalid_request`.

    A batch is first decoded as plain records, which is faster because optional fields are not looked for.
    """
    if len(body) > BATCH_BYTES:
        if not body.isascii():
            check_text(body)
        try:
            return _plain_decode(body)
        except (msgspec.MsgspecError, RecursionError):  # `suppress` takes as long as the decoder
            pass
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


# --- the outline of a write: where its records start and end

PIECE_BYTES, RECORDS_A_STEP = 64 << 10, 256  # per step, but at least one record
PART_BYTES = 512 << 10  # records decoded per step
SLOW_NS = 20_000_000  # extra decoding time above which a body is decoded in parts
QUICK_BYTES = 1 << 20  # a body up to this size is never slow
SAMPLES, SAMPLE_BYTES = 16, 2 << 10
OBJECT_NS, ESCAPE_NS = 190, 7  # decoding time of each; any other byte takes half a nanosecond

FIRST_BYTES = 4 << 10  # the first look for the end of a value; the next ones see eight times as much

_signs = {sign: re.compile(rb"[ \t\r\n]*%b[ \t\r\n]*" % re.escape(sign)).match for sign in (b"{", b"[", b":", b",")}
_byte = re.compile(r"\(byte (\d+)\)").search
_decode_raw = msgspec.json.Decoder(Raw).decode


class Outline(Struct):
    """Position of the array of records, without its brackets, and the starts of parts with whole records."""

    low: int
    high: int
    parts: list[int]


def is_slow(body: bytes) -> bool:
    """Return whether decoding the body would take long, estimated from samples.

    Their places follow from the whole text: a body is always decoded in the same way, and a client cannot choose what
    is not looked at.
    """
    if len(body) <= QUICK_BYTES:
        return False
    objects = escapes = 0
    places = Random(xxhash.xxh3_64_intdigest(body))
    for _ in range(SAMPLES):
        at = places.randrange(len(body) - SAMPLE_BYTES)
        objects += body.count(b"{", at, at + SAMPLE_BYTES)
        escapes += body.count(b"\\", at, at + SAMPLE_BYTES)
    a_byte_ns = (objects * OBJECT_NS + escapes * ESCAPE_NS) / (SAMPLES * SAMPLE_BYTES)
    return len(body) * a_byte_ns > SLOW_NS


def outline(body: bytes, limits: Limits) -> Generator[None, None, Outline]:
    """Find the records of a write, in steps.

    Raise `batch_too_large`, `record_too_large`, `payload_too_large` or `invalid_request` as soon as it is certain. A
    text that is not JSON may have an outline: decoding its parts then fails.
    """
    found: Outline | None = None
    at = _after(body, 0, b"{")
    more = True
    # Bound: the length of the body, of which each round takes a member.
    while more:
        end = _end(body, at, MAX_PLAIN_BODY_BYTES)
        name, at = body[at:end], _after(body, end, b":")
        if name.startswith(b'"') and json.loads(name) == "records" and body.startswith(b"[", at):
            if found is not None:
                raise invalid("the body has records more than once", field="records")
            found = yield from _records(body, _after(body, at, b"["), limits)
            at = found.high + 1
        elif (at := _end(body, at, MAX_PLAIN_BODY_BYTES)) < 0:
            raise body_too_large(len(body) - (0 if found is None else found.high - found.low))
        more = (comma := _signs[b","](body, at)) is not None
        at = comma.end() if comma is not None else at
        yield
    if found is None:
        raise invalid("records is required", field="records")
    return found


def _records(body: bytes, low: int, limits: Limits) -> Generator[None, None, Outline]:
    """Find the records of the array whose first one begins at `low`."""
    # Besides data and meta a record has only short fields, so a record with much more text is too large.
    most = 2 * limits.max_record_bytes + PIECE_BYTES
    parts: list[int] = []
    count, seen, at = 0, low, low
    # Bound: the length of the body, of which each round takes a record.
    while not body.startswith(b"]", at):
        if count == limits.max_batch_records:
            raise too_many_records(limits)
        if not parts or at - parts[-1] >= PART_BYTES:
            parts.append(at)
        if (at := _end(body, at, most)) < 0:
            raise record_too_large(count, most, limits)
        count += 1
        if not body.startswith(b"]", at):
            at = _after(body, at, b",")
        if at - seen >= PIECE_BYTES or not count % RECORDS_A_STEP:
            seen = at
            yield
    return Outline(low, at, parts)


def _end(body: bytes, at: int, most: int) -> int:
    """Return the position of what follows the value at `at`, without white space; -1 if it has more than `most` bytes.

    The decoder says where it is.
    """
    size = FIRST_BYTES
    # Bound: each round but the last looks at eight times as much, up to one byte too many.
    while True:
        piece = body[at : at + size]
        # The decoder refuses lone surrogates. An escape of another character takes as many bytes.
        text = piece.replace(b"\\ud", b"\\ue").replace(b"\\uD", b"\\ue") if b"\\u" in piece else piece
        try:
            _decode_raw(text)
        except RecursionError:
            raise invalid("the body is nested too deeply") from None
        except msgspec.DecodeError as error:
            found = _byte(str(error))
            if found is not None and "trailing" in str(error):
                return at + int(found[1]) - 1
            if len(piece) < size or (found is not None and int(found[1]) < len(piece)):
                raise invalid(f"the body is not valid JSON: {error}") from None
        else:
            if len(piece) < size:
                return len(body)
        if size > most:
            return -1
        size = min(8 * size, most + 1)


def _after(body: bytes, at: int, sign: bytes) -> int:
    """Return the position after a sign and the white space around it."""
    found = _signs[sign](body, at)
    if found is None:
        raise invalid(f"the body is not valid JSON: expected {sign.decode()!r} at byte {at}")
    return found.end()
