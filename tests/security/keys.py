"""The keys that most security tests use: one for every set of scopes, with and without a prefix."""

from itertools import combinations

SCOPES = ("read", "write", "delete", "admin")
EVERY_SET = tuple(frozenset(words) for n in range(1, 5) for words in combinations(SCOPES, n))
PREFIX = "in."
ALL = frozenset(SCOPES)


def key_for(scopes: frozenset[str], *, prefixed: bool = False) -> str:
    return f"secret-{'-'.join(sorted(scopes))}{'-in' if prefixed else ''}"


def keys_setting() -> str:
    entries = []
    for scopes in EVERY_SET:
        entries.append(f"{key_for(scopes)}:{'+'.join(sorted(scopes))}")
        entries.append(f"{key_for(scopes, prefixed=True)}:{'+'.join(sorted(scopes))}:{PREFIX}|{PREFIX}more")
    return ",".join(entries)


FULL = key_for(ALL)
FULL_IN = key_for(ALL, prefixed=True)
