"""Decoders of WebSocket commands: short messages at once, long ones in steps."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from topics.errors import Code, TopicsError
from topics.model import surrogates
from topics.model.records import Limits
from topics.model.unknown_fields import Noted, RequestDecoder
from topics.model.watch import Addressed, Command, Publish, RequestId
from topics.model.wire import MAX_PLAIN_BODY_BYTES
from topics.server.http.request.write_request import decode_steps

_command_decoder: RequestDecoder[Command] = RequestDecoder(Command, surrogates.decode)
_publish_decoder: RequestDecoder[Publish] = RequestDecoder(Publish)
_decode_address = msgspec.json.Decoder(Addressed)


def decode_short(text: bytes, noted: Noted) -> Command:
    """Return the command in a message, and note its unknown fields. Raise `invalid_request` if it is none."""
    return _command_decoder.decode(text, noted)


def decode_long(text: bytes, limits: Limits, noted: Noted) -> Generator[None, None, Command]:
    """Decode a long message in steps. Only a publish may be longer than the body of a request that is no write."""
    if len(text) <= MAX_PLAIN_BODY_BYTES and not text.startswith(b'{"op":"publish"'):
        return decode_short(text, noted)
    try:
        publish: Publish = yield from decode_steps(_publish_decoder, text, limits, noted)
    except TopicsError as error:
        if error.detail is not None and error.detail.get("field") == "op":
            what = f"a message of more than {MAX_PLAIN_BODY_BYTES} bytes can only be a publish"
            raise TopicsError(Code.PAYLOAD_TOO_LARGE, what, detail={"max": MAX_PLAIN_BODY_BYTES}) from None
        raise
    return publish


def address_of(text: bytes) -> RequestId:
    """Return the `request_id` of an invalid command, or None if it has none or the message is long."""
    if len(text) > MAX_PLAIN_BODY_BYTES:
        return None
    try:
        return _decode_address.decode(text).request_id
    except (msgspec.MsgspecError, RecursionError):
        return None
