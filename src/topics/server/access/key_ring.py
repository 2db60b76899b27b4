"""The keys of a server: those of its settings and those of the data directory, and the tokens that they create."""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from hashlib import blake2b, sha256
from hmac import compare_digest
from itertools import repeat
from operator import mul

from topics import logs
from topics.clock import Clock, SystemClock
from topics.errors import Code, TopicsError
from topics.keys import KeyRule
from topics.model.access import Revocation, StoredKey
from topics.server.access.caller import Caller
from topics.server.access.tokens import Tokens
from topics.token_keys import TokenKey

REMOVED, KEY_EXPIRED = "the key was removed", "the key has expired"


class KeyRing:
    """The callers of a server by the digests of their secrets."""

    def __init__(
        self, rules: tuple[KeyRule, ...], token_keys: tuple[TokenKey, ...] = (), clock: Clock | None = None
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self.callers: list[Caller] = []  # of the settings
        self._rules: tuple[KeyRule, ...] = ()
        self.stored: dict[str, Caller] = {}  # by the name of the key
        self.origins: frozenset[bytes] = frozenset()  # that their rights name
        # Not compared one by one: nobody can choose the digest of a secret, so the table reveals nothing of one.
        self._by_digest: dict[bytes, tuple[Caller, int | None]] = {}  # with the end of the secret
        self.tokens = Tokens(token_keys, self._clock, self._with_id)
        self.replace(rules)

    def replace(self, rules: tuple[KeyRule, ...]) -> None:
        """Use other rules of the settings from now on.

        A key whose rule is unchanged keeps its caller, and with it its counts, streams and watch sessions. Every other
        caller ends.
        """
        kept: dict[KeyRule, Caller | None] = dict(zip(self._rules, self.callers, strict=True))
        self.callers = [
            kept.pop(rule, None)
            or Caller("", rule.rights, counted=True, id=blake2b(rule.digest, digest_size=8).hexdigest())
            for rule in rules
        ]
        for number, caller in enumerate(self.callers, start=1):
            # The position in the configuration: it appears in logs, and must reveal nothing of the secret.
            caller.name = f"key{number}"
        self._rules = rules
        self._digests = [rule.digest for rule in rules]
        self._numbers = range(1, len(rules) + 1)
        for dropped in filter(None, kept.values()):
            self._end(dropped, REMOVED)

    def changed(self, name: str, row: StoredKey | Revocation | None) -> None:
        """Follow a row of the data directory: it was created, changed, or deleted if `row` is None."""
        if isinstance(row, Revocation) or (row is None and name not in self.stored):
            self.tokens.revoke(name, row)
            return
        before = self.stored.pop(name, None)
        if before is not None:
            self._by_digest = {digest: one for digest, one in self._by_digest.items() if one[0] is not before}
        if isinstance(row, StoredKey):
            alike = before is not None and (before.id, before.rights) == (row.id, row.rights)
            caller = before if alike and before else Caller(name, row.rights, counted=True, id=row.id)
            caller.expires_ms = row.expires_ms
            caller.rotated_ms = max((ends for _, ends in row.digests if ends is not None), default=0)
            caller.changes += 1
            self.stored[name] = caller
            self._by_digest |= {digest: (caller, ends) for digest, ends in row.digests}
            before = None if alike else before
        named = (origin.encode() for caller in self.stored.values() for origin in caller.rights.origins)
        self.origins = frozenset(named)
        if before is not None:
            self._end(before, REMOVED)

    def authenticate(self, secret: bytes) -> Caller:
        """Return the caller of a key or a token. Raise `unauthorized` with the reason if there is none."""
        caller = self.find(secret)
        if caller is None:
            if secret.startswith(b"eyJ") and secret.count(b".") == 2:
                caller = self.tokens.find(secret)
            else:
                what = "the API key is unknown: check the key and TOPICS_API_KEYS" if secret else (
                    "an API key is required: send authorization: Bearer <key>"
                )  # fmt: skip
                raise TopicsError(Code.UNAUTHORIZED, what)
        caller.used_ms = self._clock.now_ms()
        return caller

    def find(self, secret: bytes) -> Caller | None:
        """Return the key with this secret, or None.

        The digest of the secret is compared with that of every key of the settings, each comparison in constant time
        and none skipped after a match. The number of the match is a sum. The time taken therefore reveals neither which
        key matched nor how much of one.
        """
        presented = sha256(secret).digest()
        matches = map(compare_digest, self._digests, repeat(presented))
        number: int = sum(map(mul, matches, self._numbers))
        if number:
            return self.callers[number - 1]
        found = self._by_digest.get(presented)
        if found is None:
            return None
        caller, ends = found
        if ends is not None and ends <= self._clock.now_ms():
            return None
        if caller.expires_ms is not None and caller.expires_ms <= self._clock.now_ms():
            raise TopicsError(Code.UNAUTHORIZED, KEY_EXPIRED)
        return caller

    def sweep(self) -> None:
        """End what has expired, with its streams."""
        self.tokens.sweep()
        now = self._clock.now_ms()
        for caller in self.stored.values():
            if caller.expires_ms is not None and caller.expires_ms <= now and not caller.ended:
                self._end(caller, KEY_EXPIRED)

    def named(self, name: str) -> Caller | None:
        return self.stored.get(name) or next((one for one in self.callers if one.name == name), None)

    def _with_id(self, key_id: str) -> Caller | None:
        return next((one for one in (*self.callers, *self.stored.values()) if one.id == key_id), None)

    def _end(self, caller: Caller, reason: str) -> None:
        caller.end(reason)
        self.tokens.key_ended(caller)


log = logs.Log("access")

WINDOW_MS = 60_000
MAX_ADDRESSES = 10_000  # that are remembered


class Failures:
    """Failed authentications of the last minute by address. After `most` of them, no key of an address is looked at."""

    def __init__(self, clock: Clock, most: int) -> None:
        self.total = 0
        self.refused_total = 0
        self._clock = clock
        self._most = most  # 0: no limit
        self._since: OrderedDict[str, tuple[int, int]] = OrderedDict()  # when the minute began, and how many failed

    def check(self, peer: str) -> None:
        """Raise `throttled` if this address has failed too often."""
        if not self._since or not self._most:
            return
        address = _address(peer)
        began, count = self._since.get(address, (0, 0))
        left_ms = began + WINDOW_MS - self._clock.now_ms()
        if count >= self._most and left_ms > 0 and not _is_here(address):
            self.refused_total += 1
            raise TopicsError(
                Code.THROTTLED, "too many failed authentications from this address",
                detail={"limit": "max_auth_failures", "max": self._most}, retry_after_ms=left_ms,
            )  # fmt: skip

    def note(self, peer: str, error: TopicsError) -> None:
        """Count a failure. The first of a minute, and the last before the limit, are logged."""
        self.total += 1
        address, now = _address(peer), self._clock.now_ms()
        began, count = self._since.pop(address, (now, 0))
        if began + WINDOW_MS <= now:
            began, count = now, 0
        self._since[address] = began, count + 1
        if len(self._since) > MAX_ADDRESSES:
            self._since.popitem(last=False)
        if count == 0 or count + 1 == self._most:
            log.warning("authentication_failed", address=address, failures=count + 1, reason=error.message)


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _is_here(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
