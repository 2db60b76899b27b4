"""Which key a request was sent with: one lookup, the same work whatever the answer."""

from hashlib import sha256
from hmac import compare_digest
from itertools import repeat
from operator import mul

from topics.keys import KeyRule
from topics.server.access.caller import Caller
from topics.server.access.operations import Scope


class KeyRing:
    """The keys of a server, as digests."""

    __slots__ = ("_digests", "_places", "callers")

    def __init__(self, rules: tuple[KeyRule, ...]) -> None:
        # Named by their place in the configuration: a name is for logs, and must not tell anything of the secret.
        self.callers = [_caller(rule, f"key{place}") for place, rule in enumerate(rules, start=1)]
        self._digests = [rule.digest for rule in rules]
        self._places = range(1, len(rules) + 1)

    def find(self, secret: bytes) -> Caller | None:
        """The caller behind a secret.

        The secret is hashed and its digest compared with that of every key, each comparison in constant time and none
        left out after a match; the place of the match comes out of a sum. So the time taken tells neither which key
        matched nor how much of one.
        """
        presented = sha256(secret).digest()
        matches = map(compare_digest, self._digests, repeat(presented))
        place = sum(map(mul, matches, self._places))
        return self.callers[place - 1] if place else None


def _caller(rule: KeyRule, name: str) -> Caller:
    scopes = Scope.NONE
    for word in rule.scopes:
        scopes |= Scope[word.upper()]
    return Caller(name, scopes, rule.prefixes, counted=True)
