"""Composite cursors: the positions of a watcher in all its topics, as one event id.

    up to 64 topics   base64url, without padding, of a JSON object: {"jobs":5210,"events":88130}
    more              base64url of a JSON array of pairs, flat: [number of the topic in its session, seq, ...]

The key of a topic is its name. A topic that a pattern matched after the session was created has `name@epoch`: the name
alone does not distinguish the positions in two epochs of a topic. The second form exists because names can be long, and
an id comes back as a request header, which has a limit. It means nothing outside its session.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec

from topics.model.topic import U64_MAX

MAX_NAMED = 64

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(dict[str, int] | list[int]).decode


class Position(msgspec.Struct, frozen=True):
    """The content of an id: seqs by key, or by number."""

    by_key: dict[str, int]
    by_number: dict[int, int]


def encode(position: dict[str, int] | list[int]) -> bytes:
    return urlsafe_b64encode(_encode(position)).rstrip(b"=")


def find(text: str) -> Position | None:
    """Return the position, or None for an id that no server can have sent."""
    try:
        raw = text.strip().encode("ascii").rstrip(b"=")
        found = _decode(urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)))
    except (ValueError, RecursionError, msgspec.MsgspecError):
        return None
    seqs = list(found.values()) if isinstance(found, dict) else found
    if any(not 0 <= seq <= U64_MAX for seq in seqs):
        return None
    if isinstance(found, dict):
        return Position(found, {})
    return None if len(found) % 2 else Position({}, dict(zip(found[::2], found[1::2], strict=True)))


def split_key(key: str) -> tuple[str, int | None]:
    """Return the name of the topic, and its epoch if the key has one."""
    name, at, epoch = key.partition("@")
    return name, int(epoch) if at and epoch.isascii() and epoch.isdigit() and len(epoch) <= 20 else None
