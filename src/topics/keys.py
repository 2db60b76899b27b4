"""API keys as an operator writes them, and what is kept of them. Pure: no files, no environment.

    secret                      every scope, every name
    secret:scopes               scopes joined by +: read, write, delete, admin; r, w, d, a for short; rw for read+write
    secret:scopes:prefixes      and only topics and routers whose names begin with one of these, joined by |
    secret::prefixes            every scope

A prefix may hold colons (`tenant42:`), a secret may not: the first colon ends it. Entries stand on lines of a file or
between the commas of a variable.

The secret is hashed where it is parsed, and only its SHA-256 digest goes any further. An entry that does not parse is
refused, because any guess at its meaning could grant what nobody meant to grant; the message never quotes the entry,
because what looks like a scope may be the second half of a secret.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

SCOPES = ("read", "write", "delete", "admin")
_SHORT = {"r": ("read",), "w": ("write",), "d": ("delete",), "a": ("admin",), "rw": ("read", "write")}
_WORDS = {scope: (scope,) for scope in SCOPES} | _SHORT

# What can be sent in an Authorization field and cannot be taken for a separator.
_SECRET = re.compile(r"[!-+\--9;-~]{1,4096}")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")


class BadKeys(ValueError):
    """Entries that cannot be used. Says where and why, and holds nothing of the entries themselves."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """One key: whoever knows the secret behind the digest may do this."""

    digest: bytes  # SHA-256 of the secret
    scopes: frozenset[str]
    prefixes: tuple[str, ...]  # none means any name


def digest_of(secret: bytes) -> bytes:
    return sha256(secret).digest()


def parse_list(text: str) -> tuple[KeyRule, ...]:
    """Entries between commas; blanks around them do not count."""
    return parse(text.split(","))


def parse_lines(text: str) -> tuple[KeyRule, ...]:
    """An entry a line; empty lines and those that begin with # do not count."""
    return parse(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def parse(entries: Iterable[str]) -> tuple[KeyRule, ...]:
    stripped = (entry.strip() for entry in entries)
    rules = tuple(_parse_entry(entry, number) for number, entry in enumerate(filter(None, stripped), start=1))
    if not rules:
        raise BadKeys("it holds no key")
    check_distinct(rules)
    return rules


def check_distinct(rules: Iterable[KeyRule]) -> None:
    """One secret with two sets of rights has no meaning that is safe to pick."""
    seen: dict[bytes, int] = {}
    for number, rule in enumerate(rules, start=1):
        first = seen.setdefault(rule.digest, number)
        if first != number:
            raise BadKeys(f"key {first} and key {number} have the same secret")


def _parse_entry(entry: str, number: int) -> KeyRule:
    secret, _, rest = entry.partition(":")
    scopes, _, prefixes = rest.partition(":")
    if _SECRET.fullmatch(secret) is None:
        raise BadKeys(f"key {number}: the secret is empty, too long, or holds what a header cannot carry")
    return KeyRule(digest_of(secret.encode()), _parse_scopes(scopes, number), _parse_prefixes(prefixes, number))


def _parse_scopes(text: str, number: int) -> frozenset[str]:
    if not text:
        return frozenset(SCOPES)
    found: set[str] = set()
    for word in text.split("+"):
        if word not in _WORDS:
            raise BadKeys(
                f"key {number}: its second field is no list of scopes; join {', '.join(SCOPES)} (r, w, d, a, rw) with +"
            )
        found.update(_WORDS[word])
    return frozenset(found)


def _parse_prefixes(text: str, number: int) -> tuple[str, ...]:
    if not text:
        return ()
    prefixes = tuple(text.split("|"))
    if not all(_PREFIX.fullmatch(prefix) for prefix in prefixes):
        # An empty prefix among others would quietly allow every name; one that no name has would quietly allow none.
        raise BadKeys(f"key {number}: its third field is no list of prefixes of names, joined with |")
    return prefixes
