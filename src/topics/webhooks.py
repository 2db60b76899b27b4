"""Webhooks: which topics take them, and the signatures of those that come in and go out. Pure: no files, no clock.

The file of an operator is a JSON object with a row for each topic:

    {"orders": {"style": "stripe", "secret": "whsec_…"}, "commits": {"style": "github", "secret": ["new", "old"]}}

A style says where a sender puts the id and the time of a delivery, what it signs, and how:

    standard    Standard Webhooks: `webhook-id`, `webhook-timestamp`, and the HMAC-SHA256 of "id.time.body" in base64
    github      `x-github-delivery`, no time, and the HMAC-SHA256 of the body in hexadecimal digits
    stripe      the time and the HMAC-SHA256 of "time.body" in one header; the id is that of the event in the body

Messages never quote the file, because any part of it can be a secret.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from topics.keys import is_prefix

Style = Literal["standard", "github", "stripe"]

TOLERANCE_S = 300  # between the time of a delivery and the clock of the server
MIN_SECRET_BYTES = 16
MAX_SIGNATURES = 32  # of one delivery: a sender signs with each secret that it has
MISMATCH = "the topic takes none, or its signature does not match: check the row of the topic in TOPICS_WEBHOOKS_FILE"
PREFIX = "whsec_"  # of a secret of Standard Webhooks; base64 follows


class BadWebhooks(ValueError):
    """Invalid rows: where and why. The message never contains a part of the file."""


class BadDelivery(ValueError):
    """A delivery that is refused, and why."""


class Webhook(Struct, frozen=True, forbid_unknown_fields=True):
    """What a topic takes. A delivery is signed with any of the secrets, so that they can be exchanged one by one."""

    style: Style
    secret: str | tuple[str, ...]

    @property
    def keys(self) -> tuple[bytes, ...]:
        texts = (self.secret,) if isinstance(self.secret, str) else self.secret
        return tuple(map(standard_key if self.style == "standard" else str.encode, texts))


class Delivery(Struct):
    """A webhook whose signature is right."""

    id: str
    event: str | None = None  # what kind of event it reports


class Event(Struct):
    """What a body can say about itself."""

    id: Any = None
    type: Any = None


def parse_webhooks(text: str) -> Mapping[str, Webhook]:
    """Return the rows of a file by topic. Raise `BadWebhooks` if one cannot be used."""
    try:
        rows = msgspec.json.decode(text, type=dict[str, Webhook])
    except msgspec.ValidationError as error:
        where = str(error).rpartition(" - at ")[2].strip("`")
        what = 'a row is {"style": "standard" | "github" | "stripe", "secret": text or list of texts}'
        raise BadWebhooks(f"{where} is not valid: {what}") from None
    except msgspec.DecodeError:
        raise BadWebhooks("is not valid JSON") from None
    for number, (topic, row) in enumerate(rows.items(), start=1):
        if not is_prefix(topic):
            raise BadWebhooks(f"row {number}: its key is not the name of a topic")
        try:
            weak = not row.keys or any(len(key) < MIN_SECRET_BYTES for key in row.keys)
        except ValueError as error:
            raise BadWebhooks(f"row {number}: {error}") from None
        if weak:
            raise BadWebhooks(
                f"row {number}: a secret has less than {MIN_SECRET_BYTES} bytes; use openssl rand -hex 32"
            )
    return rows


def standard_key(secret: str) -> bytes:
    """Return the bytes of a secret of Standard Webhooks. Raise `ValueError` if it is none."""
    head, _, code = secret.partition("_")
    try:
        if head + "_" == PREFIX:
            return b64decode(code, validate=True)
    except ValueError:
        pass
    raise ValueError(f"a secret of Standard Webhooks is {PREFIX} and base64")


def signed_headers(id: str, sent_s: int, body: bytes, keys: Iterable[bytes]) -> dict[str, str]:
    """Return the header fields of a delivery by Standard Webhooks, with a signature of each key."""
    text = b"%b.%d.%b" % (id.encode(), sent_s, body)
    signatures = " ".join("v1," + b64encode(_hmac(key, text)).decode() for key in keys)
    return {"webhook-id": id, "webhook-timestamp": str(sent_s), "webhook-signature": signatures}


def check_delivery(webhook: Webhook | None, headers: Mapping[bytes, bytes], body: bytes, now_s: float) -> Delivery:
    """Return the delivery that the header fields and the body are. Raise `BadDelivery` if its signature is wrong.

    A topic without a row is refused in the same words: a stranger does not learn which topics take webhooks.
    """
    if webhook is None:
        raise BadDelivery(MISMATCH)
    sent, found, text, given = _signed_part(webhook.style, headers, body)
    expected = [_hmac(key, text) for key in webhook.keys]
    # Each is compared with each: the time taken does not say which secret is in use.
    if not sum(hmac.compare_digest(one, other) for one in expected for other in given[:MAX_SIGNATURES]):
        raise BadDelivery(MISMATCH)
    if sent is not None and abs(now_s - sent) > TOLERANCE_S:
        raise BadDelivery(f"it was sent more than {TOLERANCE_S} s ago or ahead: send it again, or set the clocks")
    event = headers.get(b"x-github-event") if webhook.style == "github" else _event(body).type
    kind = event.decode("latin-1") if isinstance(event, bytes) else event
    return Delivery(found, kind if isinstance(kind, str) else None)


def _signed_part(
    style: Style, headers: Mapping[bytes, bytes], body: bytes
) -> tuple[int | None, str, bytes, list[bytes]]:
    """Return the time and the id of a delivery, the text that is signed, and the signatures."""

    def field(name: bytes) -> str:
        return headers.get(name, b"").decode("latin-1")

    if style == "github":
        _, _, digits = field(b"x-hub-signature-256").partition("sha256=")
        return None, field(b"x-github-delivery"), body, _from_hex([digits])
    if style == "stripe":
        parts = [part.strip().partition("=") for part in field(b"stripe-signature").split(",")]
        sent = next((value for name, _, value in parts if name == "t"), "")
        text = b"%b.%b" % (sent.encode("latin-1"), body)
        given = _from_hex(value for name, _, value in parts if name == "v1")
        found = _event(body).id
        return _seconds(sent), found if isinstance(found, str) else "", text, given
    sent, id = field(b"webhook-timestamp"), field(b"webhook-id")
    text = b"%b.%b.%b" % (id.encode("latin-1"), sent.encode("latin-1"), body)
    given = []
    for part in field(b"webhook-signature").split():
        version, _, code = part.partition(",")
        if version == "v1":
            try:
                given.append(b64decode(code, validate=True))
            except ValueError:
                continue
    return _seconds(sent), id, text, given


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise BadDelivery("it has no time: a sender of this style signs the time of a delivery")
    return int(text)


def _from_hex(texts: Iterable[str]) -> list[bytes]:
    found = []
    for text in texts:
        try:
            found.append(bytes.fromhex(text))
        except ValueError:
            continue
    return found


def _event(body: bytes) -> Event:
    try:
        return msgspec.json.decode(body, type=Event)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Event()


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")
