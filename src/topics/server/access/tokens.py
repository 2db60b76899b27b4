"""Tokens: sign and check them (JWT, RFC 7519), and keep the callers of those that were checked.

    {"alg": "HS256", "kid": "…"}                                  header
    {"aud": "topics", "iat": …, "exp": …, "jti": "…", "sub": "…"}  claims: exp - iat is at most a day
    "topics": {"scopes": ["read"], "names": ["orders"], …}         another claim: a `Rights`, whose scopes must be there
    "topics": {…, "key": "…"}                                      the id of the key that it depends on, if there is one

The signature is checked once. After that, the token is found by its digest until it expires.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec

from topics.clock import Clock
from topics.errors import Code, TopicsError
from topics.keys import Rights
from topics.model.access import MAX_TEXT_CHARS, MAX_TTL_MS, Revocation, TokenRequest, check_rights, grant
from topics.server.access.caller import Caller
from topics.token_keys import ALGORITHMS, TokenKey, secret_key

AUDIENCE = "topics"
FUTURE_MS = 10_000  # how far the clock of a machine that signs may be ahead
MAX_TOKEN_BYTES = 8192
MAX_CALLERS = 10_000  # that are kept without an open stream
EXPIRED, REVOKED = "the token has expired: get a new one", "the token was revoked"


class Tokens:
    """The tokens of one server. `find_key` returns the caller of a key by its id."""

    def __init__(self, keys: tuple[TokenKey, ...], clock: Clock, find_key: Callable[[str], Caller | None]) -> None:
        self._clock = clock
        self._find_key = find_key
        self._callers: dict[bytes, Caller] = {}  # by the digest of the token
        self._revocations: dict[str, Revocation] = {}
        # Without a secret in the file, the server has one of its own, and tokens end with a restart.
        self._own = secret_key(secrets.token_hex(32))
        self.use_keys(keys)

    def use_keys(self, keys: tuple[TokenKey, ...]) -> None:
        """Sign and check with other keys from now on. Tokens of keys that are gone end."""
        self._signing = next((key for key in keys if key.algorithm == "HS256"), self._own)
        self._keys = {key.id: key for key in (*keys, self._own)}
        self._end_all(REVOKED, lambda caller: caller.signed_by not in self._keys)

    # --- create

    def create(self, caller: Caller, request: TokenRequest) -> tuple[str, str, int, Rights]:
        """Return a token, its id, its expiry, and its rights. Raise `forbidden` if the caller lacks them."""
        import jwt

        if caller.counted and not caller.id:
            raise TopicsError(Code.FORBIDDEN, "a token cannot create tokens: use the key that created it")
        rights = grant(request, caller.rights)
        now = self._clock.now_ms()
        ends = min(now + request.ttl_ms, caller.expires_ms or now + MAX_TTL_MS)
        token_id = secrets.token_urlsafe(12)
        body = msgspec.to_builtins(rights) | {"scopes": list(rights.scopes)}
        claims: dict[str, Any] = {"aud": AUDIENCE, "iat": now / 1000, "exp": ends / 1000, "jti": token_id}
        claims["topics"] = body | ({"key": caller.id} if caller.id else {})
        if request.subject:
            claims["sub"] = request.subject
        token = jwt.encode(claims, self._signing.key, "HS256", {"kid": self._signing.id})
        if len(token) > MAX_TOKEN_BYTES:
            raise TopicsError(Code.INVALID_REQUEST, f"the token would be longer than {MAX_TOKEN_BYTES} bytes")
        return token, token_id, ends, rights

    # --- check

    def find(self, secret: bytes) -> Caller:
        """Return the caller of a token. Raise `unauthorized` if it is not valid."""
        digest = sha256(secret).digest()
        caller = self._callers.get(digest)
        if caller is None:
            caller = self._checked(secret)
            self._make_room()
            self._callers[digest] = caller
        if caller.expires_ms is not None and caller.expires_ms <= self._clock.now_ms():
            self._callers.pop(digest).end(EXPIRED)
            raise TopicsError(Code.UNAUTHORIZED, EXPIRED)
        return caller

    def _checked(self, secret: bytes) -> Caller:
        """Check a token for the first time: its signature, its times, its rights, and the key that it depends on."""
        try:
            if len(secret) > MAX_TOKEN_BYTES:
                raise ValueError("it is too long")
            kid, claims = self._verified(secret)
            issued, ends = (round(claims[name] * 1000) for name in ("iat", "exp"))
            begins = max(issued, round(claims.get("nbf", 0) * 1000))
            rights, key_id = _rights_of(claims["topics"])
            token_id, subject = claims.get("jti", ""), claims.get("sub", "")
            if not (
                isinstance(token_id, str) and isinstance(subject, str) and len(token_id + subject) <= MAX_TEXT_CHARS
            ):
                raise ValueError("jti and sub are not short texts")
        except TopicsError as error:
            raise TopicsError(Code.UNAUTHORIZED, f"the token is not valid: {error.message}") from None
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            why = str(error) if type(error) is ValueError else "a claim is missing or has a wrong type"
            raise TopicsError(Code.UNAUTHORIZED, f"the token is not valid: {why}") from None
        now = self._clock.now_ms()
        if ends <= now:
            raise TopicsError(Code.UNAUTHORIZED, EXPIRED)
        if begins > now + FUTURE_MS:
            raise TopicsError(Code.UNAUTHORIZED, "the token is not valid yet: compare the clocks")
        if not 0 < ends - issued <= MAX_TTL_MS:
            raise TopicsError(Code.UNAUTHORIZED, "the token is valid for longer than a day: exp - iat is at most 86400")
        parent = None if key_id is None else self._find_key(key_id)
        if key_id is not None and (parent is None or parent.ended or rights.excess(parent.rights) is not None):
            raise TopicsError(Code.UNAUTHORIZED, "the key of the token was removed, or has other rights now")
        name = f"token {subject or token_id}" + ("" if parent is None else f" of {parent.name}")
        caller = Caller(
            name, rights, counted=True, parent=parent, subject=subject, signed_by=kid, token=token_id,
            issued_ms=issued, expires_ms=ends,
        )  # fmt: skip
        if any(_covers(one, caller) for one in self._revocations.values()):
            raise TopicsError(Code.UNAUTHORIZED, REVOKED)
        return caller

    def _verified(self, secret: bytes) -> tuple[str, dict[str, Any]]:
        """Return the id of the key that has signed a token, and its claims. The algorithm is that of the key."""
        import jwt

        try:
            header = jwt.get_unverified_header(secret)
            if header.get("alg") not in ALGORITHMS:
                raise ValueError(f"alg is not one of {', '.join(ALGORITHMS)}")
            named = self._keys.get(str(header.get("kid")))
            found = [named] if named else [key for key in self._keys.values() if "kid" not in header]
            for key in found:
                if key.algorithm == header["alg"]:
                    try:
                        claims = jwt.decode(
                            secret, key.key, [key.algorithm], audience=AUDIENCE,
                            options={"require": ["iat", "exp", "aud"], "verify_exp": False, "verify_iat": False,
                                     "verify_nbf": False},
                        )  # fmt: skip
                        return key.id, claims
                    except jwt.InvalidSignatureError:
                        continue
            raise ValueError("no key of this server has signed it; it ends with a restart of a server without "
                             "TOPICS_TOKEN_KEYS_FILE")  # fmt: skip
        except jwt.InvalidAudienceError:
            raise ValueError(f"aud is not {AUDIENCE}") from None
        except jwt.PyJWTError as error:
            raise ValueError(type(error).__name__) from None

    def _make_room(self) -> None:
        """Forget the callers that were checked first and have nothing open. They are checked again if they return."""
        if len(self._callers) >= MAX_CALLERS:
            idle = [digest for digest, caller in self._callers.items() if not (caller.slots or caller.inflight)]
            for digest in idle[: MAX_CALLERS // 10]:
                del self._callers[digest]

    # --- end

    def sweep(self) -> None:
        """End the callers of tokens that have expired."""
        now = self._clock.now_ms()
        self._end_all(EXPIRED, lambda caller: caller.expires_ms is not None and caller.expires_ms <= now)

    def key_ended(self, key: Caller) -> None:
        self._end_all("the key of the token was removed", lambda caller: caller.parent is key)

    def revoke(self, name: str, row: Revocation | None) -> None:
        """Take a revocation of the data directory, or forget it."""
        if row is None:
            self._revocations.pop(name, None)
            return
        self._revocations[name] = row
        self._end_all(REVOKED, partial(_covers, row))

    def _end_all(self, reason: str, holds: Callable[[Caller], bool]) -> None:
        for digest, caller in list(self._callers.items()):
            if holds(caller):
                self._callers.pop(digest).end(reason)


def _covers(row: Revocation, caller: Caller) -> bool:
    """Return whether a revocation holds for the token of a caller."""
    kind, _, what = row.name.partition(">")
    mine = {"token": caller.token, "key": "" if caller.parent is None else caller.parent.id, "all": ""}
    return caller.issued_ms < row.before_ms and mine[kind] == what


def _rights_of(claim: Any) -> tuple[Rights, str | None]:
    """Return the rights in a token, and the id of its key. Raise if there is anything that this version ignores."""
    if not isinstance(claim, dict) or "scopes" not in claim:
        raise ValueError("the claim topics has no scopes")
    known = {*Rights.__struct_fields__, "key"}
    if not claim.keys() <= known:
        raise ValueError("the claim topics has unknown fields")
    key_id = claim.get("key")
    if key_id is not None and not isinstance(key_id, str):
        raise ValueError("the key of the token is not a text")
    fields = {name: value for name, value in claim.items() if name != "key"}
    try:
        return check_rights(msgspec.convert(fields, Rights)), key_id
    except msgspec.ValidationError as error:
        raise ValueError(f"the claim topics: {error}") from None
