"""Handlers of keys and tokens: create, list, rotate, revoke."""

import secrets
from hashlib import sha256
from typing import Any

from msgspec import structs

from topics.errors import Code, TopicsError, invalid
from topics.model import access as model
from topics.model.access import KeyState, Revocation, StoredKey
from topics.model.names import check_key
from topics.model.wire import Performance
from topics.server.access.caller import Caller
from topics.server.api.route import Call, noted
from topics.server.api.services import Services
from topics.server.http.messages import Answer
from topics.server.loop.answer import json_answer, json_when_done, performance


def create_token(services: Services, call: Call) -> Answer:
    made = services.keys.tokens.create(call.caller, call.body())
    return json_answer(201, model.TokenCreated(*made, performance(call.request)))


def revoke_tokens(services: Services, call: Call) -> Answer:
    wanted: model.RevokeRequest = call.body()
    now = services.runtime.clock.now_ms()
    if wanted.id is not None and (wanted.key is not None or wanted.before is not None):
        raise invalid("id goes without key and before", field="id")
    if wanted.before is not None and wanted.before > now:
        raise invalid("before is in the future", field="before")
    key = None if wanted.key is None else services.keys.named(wanted.key)
    if wanted.key is not None and key is None:
        raise _not_found(wanted.key)
    caller = call.caller
    is_covered = not caller.prefixes if key is None else key.rights.excess(caller.rights) is None
    if wanted.id is None and (caller.parent or not is_covered):  # an id cannot be guessed
        raise TopicsError(Code.FORBIDDEN, "the key does not cover these tokens")
    name = "all>" if key is None else f"key>{key.id}"
    before = now + 1 if wanted.before is None else wanted.before
    if wanted.id is not None:
        name, before = f"token>{wanted.id}", 1 << 62
    row = Revocation(name=name, before_ms=before, until_ms=now + model.MAX_TTL_MS)
    what = wanted.id or wanted.key or "all tokens"
    ticket = noted(services, call, services.engine.access.put(name, row), tokens=what)
    return json_when_done(ticket, call.request, lambda _, took: model.TokensRevoked(what, took))


def create_key(services: Services, call: Call) -> Answer:
    wanted: model.KeyRequest = call.body()
    _check_manages(call.caller)
    name = model.check_key_name(wanted.key)
    if services.engine.access.find(name) is not None:
        raise invalid(f"key {name!r} exists; rotate it, or revoke it first", field="key")
    if len(services.keys.stored) >= model.MAX_KEYS:
        raise TopicsError(Code.THROTTLED, f"the server has {model.MAX_KEYS} keys; revoke some", retry_after_ms=1000)
    secret, now = _new_secret(), services.runtime.clock.now_ms()
    row = StoredKey(
        name=name, rights=model.grant(wanted, call.caller.rights), digests=((_digest(secret), None),), created_ms=now,
        expires_ms=None if wanted.ttl_ms is None else now + wanted.ttl_ms, note=wanted.note, by=call.caller.name,
    )  # fmt: skip
    return _stored(services, call, row, secret, 201)


def rotate_key(services: Services, call: Call) -> Answer:
    """Give a key a new secret. The one before it is valid for a while, and older ones are not any more."""
    wanted: model.RotateRequest = call.body()
    row, now = _found(services, call), services.runtime.clock.now_ms()
    secret = _new_secret()
    digests = [(_digest(secret), None), *((digest, now + wanted.overlap_ms) for digest, _ in row.digests[:1])]
    kept = tuple(digests if wanted.overlap_ms else digests[:1])
    return _stored(services, call, structs.replace(row, digests=kept), secret, 200)


def drop_key(services: Services, call: Call) -> Answer:
    name = call.params["key"]
    if services.engine.access.find(check_key(name)) is None:
        if services.keys.named(name) is not None:
            what = f"{name} is a key of the settings: remove it from TOPICS_API_KEYS or the key file"
            raise TopicsError(Code.FORBIDDEN, what)
        return json_answer(200, model.KeyDropped(name, False, performance(call.request)))
    _found(services, call)
    ticket = noted(services, call, services.engine.access.put(name, None))
    return json_when_done(ticket, call.request, lambda _, took: model.KeyDropped(name, True, took))


def list_keys(services: Services, call: Call) -> Answer:
    _check_manages(call.caller)
    rows = services.engine.state.access.by_name
    states = [_state(one, None) for one in services.keys.callers]
    states += [_state(one, rows.get(name)) for name, one in sorted(services.keys.stored.items())]
    shown = [one for one in states if one.rights.excess(call.caller.rights) is None]
    return json_answer(200, model.KeyList(shown, performance(call.request)))


def _stored(services: Services, call: Call, row: StoredKey, secret: str, status: int) -> Answer:
    """Store a key, and return it with its secret."""
    ticket = noted(services, call, services.engine.access.put(row.name, row), key=row.name, rights=row.rights)

    def answer(_: Any, took: Performance) -> model.KeyCreated:
        state = _state(services.keys.stored[row.name], row)
        return model.KeyCreated(**structs.asdict(state), secret=secret, performance=took, created=status == 201)

    return json_when_done(ticket, call.request, answer)


def _state(caller: Caller, row: StoredKey | Revocation | None) -> KeyState:
    state = KeyState(
        key=caller.name, source="settings", rights=caller.rights, last_used_at=caller.used_ms or None
    )  # fmt: skip
    if isinstance(row, StoredKey):
        state.source, state.note, state.created_at, state.created_by = "stored", row.note, row.created_ms, row.by
        state.expires_at = row.expires_ms
        state.rotating_until = next((ends for _, ends in row.digests if ends is not None), None)
    return state


def _found(services: Services, call: Call) -> StoredKey:
    name = check_key(call.params["key"])
    row = services.engine.access.find(name)
    if not isinstance(row, StoredKey):
        raise _not_found(name)
    _check_manages(call.caller)
    if row.rights.excess(call.caller.rights) is not None:
        raise TopicsError(Code.FORBIDDEN, f"key {name!r} has rights that yours lacks", detail={"key": name})
    return row


def _check_manages(caller: Caller) -> None:
    """Raise `forbidden` for clients without a key of their own: of a server without keys, or with a token."""
    if not caller.id:
        what = "managing keys needs a key with admin" if caller.counted else (
            "this server has no keys: set TOPICS_API_KEYS or TOPICS_API_KEYS_FILE, and start it again"
        )  # fmt: skip
        raise TopicsError(Code.FORBIDDEN, what)


def _not_found(name: str) -> TopicsError:
    return TopicsError(Code.NOT_FOUND, f"key {name!r} does not exist", detail={"key": name})


def _new_secret() -> str:
    return "tk_" + secrets.token_urlsafe(32)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()
