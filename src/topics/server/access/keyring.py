"""The keys of a server, looked up in constant time."""

from hashlib import sha256
from hmac import compare_digest
from itertools import repeat
from operator import mul

from topics.keys import KeyRule
from topics.server.access.caller import Caller
from topics.server.access.operations import Scope


class KeyRing:
    """The callers of a server by the digests of their secrets."""

    __slots__ = ("_digests", "_numbers", "callers")

    def __init__(self, rules: tuple[KeyRule, ...]) -> None:
        # The name is the position in the configuration: it appears in logs, and must reveal nothing of the secret.
        self.callers = [_caller(rule, f"key{number}") for number, rule in enumerate(rules, start=1)]
        self._digests = [rule.digest for rule in rules]
        self._numbers = range(1, len(rules) + 1)

    def find(self, secret: bytes) -> Caller | None:
        """Return the caller with this secret, or None.

        The digest of the secret is compared with that of every key, each comparison in constant time and none skipped
        after a match. The number of the match is a sum. The time taken therefore reveals neither which key matched nor
        how much of one.
        """
        presented = sha256(secret).digest()
        matches = map(compare_digest, self._digests, repeat(presented))
        number = sum(map(mul, matches, self._numbers))
        return self.callers[number - 1] if number else None


def _caller(rule: KeyRule, name: str) -> Caller:
    scopes = Scope.NONE
    for word in rule.scopes:
        scopes |= Scope[word.upper()]
    return Caller(name, scopes, rule.prefixes, counted=True)
