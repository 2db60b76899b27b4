"""API keys: parse the entries of an operator into rules. Pure: no files, no environment.

    secret                      every scope, every name
    secret:scopes               scopes joined by +: read, write, delete, admin; r, w, d, a for short; rw for read+write
    secret:scopes:prefixes      only topics and routers whose names start with one of the prefixes, joined by |
    secret::prefixes            every scope

`nocreate` among the scopes takes the right to create topics by writing to them.

A prefix can contain colons (`tenant42:`). A secret cannot: the first colon ends it. Entries are lines of a file, or
separated by commas in a variable.

A secret is hashed when it is parsed, and only its SHA-256 digest is kept. An invalid entry is refused: a guess could
grant rights by mistake. Messages never quote an entry, because what looks like a scope can be part of a secret.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal, get_args

from msgspec import Struct

SCOPES = ("read", "write", "delete", "admin")
END = "\0"  # of a name: a prefix that ends with it covers this name alone
NO_CREATE = "nocreate"

ScopeWord = Literal["read", "write", "delete", "admin"]
Activity = Literal["watch", "diff", "publish", "work"]
_SHORT = {"r": ("read",), "w": ("write",), "d": ("delete",), "a": ("admin",), "rw": ("read", "write")}
_WORDS = {scope: (scope,) for scope in SCOPES} | _SHORT

# Characters that an Authorization header can carry, without the separators.
_SECRET = re.compile(r"[!-+\--9;-~]{1,4096}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


class BadKeys(ValueError):
    """Invalid entries: where and why. The message never contains a part of an entry."""


class Rights(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a key or a token allows. Empty and zero fields limit nothing."""

    scopes: Annotated[tuple[ScopeWord, ...], "`read`, `write`, `delete`, `admin`"] = SCOPES  # type: ignore[assignment]
    prefixes: Annotated[tuple[str, ...], "of topics, routers and schedules"] = ()
    names: Annotated[tuple[str, ...], "exact ones, in addition to the prefixes"] = ()
    operations: Annotated[tuple[Activity, ...], "only these of what the scopes allow"] = ()
    create: Annotated[bool, "whether a write may create a topic"] = True
    node: Annotated[str | None, "the only node whose records it may write"] = None
    origins: Annotated[tuple[str, ...], "of pages in a browser"] = ()
    max_streams: Annotated[int, "the most open streams and WebSockets"] = 0
    max_inflight: Annotated[int, "the most requests at a time"] = 0
    rate: Annotated[int, "the most requests in a second"] = 0

    @property
    def covering(self) -> tuple[str, ...]:
        """Return the prefixes of all names that it covers, where an exact name has `END`; empty for all names."""
        return self.prefixes + tuple(name + END for name in self.names)

    def excess(self, whole: "Rights") -> str | None:
        """Return the first field in which these rights go beyond `whole`; None if they do not."""
        covering = whole.covering
        mine: dict[str, bool] = {
            "scopes": set(self.scopes) <= set(whole.scopes),
            "prefixes": not covering or all(name.startswith(covering) for name in self.covering),
            "names": not covering or bool(self.covering),
            "create": self.create <= whole.create,
            "node": whole.node in (None, self.node),
        }
        for field in ("operations", "origins"):
            own, most = getattr(self, field), getattr(whole, field)
            mine[field] = not most or (bool(own) and set(own) <= set(most))
        for field in ("max_streams", "max_inflight", "rate"):
            most = getattr(whole, field)
            mine[field] = not most or 0 < getattr(self, field) <= most
        return next((field for field, within in mine.items() if not within), None)


@dataclass(frozen=True, slots=True)
class KeyRule:
    digest: bytes  # SHA-256 of the secret
    rights: Rights


def is_prefix(text: str) -> bool:
    """Return whether a name can begin with this."""
    return _PREFIX.fullmatch(text) is not None


def digest_of(secret: bytes) -> bytes:
    return sha256(secret).digest()


def parse_list(text: str) -> tuple[KeyRule, ...]:
    """Return the rules of comma-separated entries. Blanks around entries are ignored."""
    return parse(text.split(","))


def parse_lines(text: str) -> tuple[KeyRule, ...]:
    """Return the rules of one entry per line. Empty lines and lines that start with # are ignored."""
    return parse(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def parse(entries: Iterable[str]) -> tuple[KeyRule, ...]:
    stripped = (entry.strip() for entry in entries)
    rules = tuple(_parse_entry(entry, number) for number, entry in enumerate(filter(None, stripped), start=1))
    if not rules:
        raise BadKeys("contains no key; add one, or unset it")
    check_distinct(rules)
    return rules


def check_distinct(rules: Iterable[KeyRule]) -> None:
    """Raise `BadKeys` if two keys have the same secret: it would be unclear which rights apply."""
    seen: dict[bytes, int] = {}
    for number, rule in enumerate(rules, start=1):
        first = seen.setdefault(rule.digest, number)
        if first != number:
            raise BadKeys(f"key {first} and key {number} have the same secret; remove one")


def _parse_entry(entry: str, number: int) -> KeyRule:
    secret, _, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    if _SECRET.fullmatch(secret) is None:
        raise BadKeys(
            f"key {number}: the secret is empty, too long (over 4096), or has characters that a header cannot carry"
        )
    given = scopes.split("+") if scopes else []
    words = [word for word in given if word != NO_CREATE] or SCOPES
    if not all(word in _WORDS for word in words):
        raise BadKeys(
            f"key {number}: the second field is not a list of scopes; "
            f"use {', '.join(SCOPES)} (r, w, d, a, rw) and {NO_CREATE}, joined by +"
        )
    allowed = tuple(prefixes.split("|")) if prefixes else ()
    if not all(map(is_prefix, allowed)):
        # An empty prefix would silently allow every name, and one with other characters would silently allow none.
        raise BadKeys(f"key {number}: the third field is not a list of name prefixes, joined by |")
    found = {scope for word in words for scope in _WORDS[word]}
    granted = tuple(scope for scope in get_args(ScopeWord) if scope in found)
    return KeyRule(digest_of(secret.encode()), Rights(scopes=granted, prefixes=allowed, create=NO_CREATE not in given))
