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

    __slots__ = ("_digests", "_numbers", "_rules", "callers")

    def __init__(self, rules: tuple[KeyRule, ...]) -> None:
        self.callers: list[Caller] = []
        self._rules: tuple[KeyRule, ...] = ()
        self.replace(rules)

    def replace(self, rules: tuple[KeyRule, ...]) -> None:
        """Use other rules from now on.

        A key whose rule is unchanged keeps its caller, and with it its counts and watch sessions. Every other caller
        loses its rights, because the WebSockets that it has opened still refer to it.
        """
        kept: dict[KeyRule, Caller | None] = dict(zip(self._rules, self.callers, strict=True))
        self.callers = [kept.pop(rule, None) or _caller(rule) for rule in rules]
        for number, caller in enumerate(self.callers, start=1):
            # The position in the configuration: it appears in logs, and must reveal nothing of the secret.
            caller.name = f"key{number}"
        for dropped in filter(None, kept.values()):
            dropped.operations = frozenset()
        self._rules = rules
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


def _caller(rule: KeyRule) -> Caller:
    scopes = Scope.NONE
    for word in rule.scopes:
        scopes |= Scope[word.upper()]
    return Caller("", scopes, rule.prefixes, counted=True)
