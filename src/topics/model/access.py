"""Keys and tokens: request, stored and response types."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from topics.errors import Code, TopicsError, invalid
from topics.keys import Activity, Rights, ScopeWord, is_prefix
from topics.model.names import check_key
from topics.model.topic import U64
from topics.model.wire import Performance

DEFAULT_TTL_MS = 10 * 60_000
MAX_TTL_MS = 24 * 3_600_000
MAX_KEY_MS = 100 * 365 * MAX_TTL_MS
MAX_ROTATION_MS = 90 * MAX_TTL_MS
MAX_KEYS = 1000
MAX_NAMES = 100  # of each list of a key or token: a token is a header field
MAX_TEXT_CHARS = 128

Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Names = Annotated[tuple[str, ...], Meta(max_length=MAX_NAMES)]


class RightsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Rights to give. An omitted field gives what the key of the request has."""

    scopes: Annotated[tuple[ScopeWord, ...] | UnsetType, "`read`, `write`, `delete`, `admin`"] = UNSET
    prefixes: Annotated[Names | UnsetType, "prefixes of the names that it may use"] = UNSET
    names: Annotated[Names | UnsetType, "exact names that it may use"] = UNSET
    operations: Annotated[
        tuple[Activity, ...] | UnsetType,
        "`watch`, `diff` (and scan), `publish`, `work`; only these of what the scopes allow",
    ] = UNSET
    create: Annotated[bool | UnsetType, "whether a write may create a topic"] = UNSET
    node: Annotated[Text | UnsetType | None, "the node of everything that it writes"] = UNSET
    origins: Annotated[Names | UnsetType, "the origins of pages that may use it, such as `https://app.example`"] = UNSET
    max_streams: Annotated[U64 | UnsetType, "the most open streams and WebSockets; 0 is no own limit"] = UNSET
    max_inflight: Annotated[U64 | UnsetType, "the most requests at a time"] = UNSET
    rate: Annotated[U64 | UnsetType, "the most requests in a second"] = UNSET


class TokenRequest(RightsRequest, kw_only=True):
    """Body of `POST /v0/tokens`."""

    ttl_ms: Annotated[int, Meta(ge=1, le=MAX_TTL_MS, description="how long it is valid; at most a day")] = (
        DEFAULT_TTL_MS
    )
    subject: Annotated[Text, "whom it is for: in logs and in the audit topic"] = ""


class KeyRequest(RightsRequest, kw_only=True):
    """Body of `POST /v0/keys`."""

    key: Annotated[str, "the name of the new key"]
    note: Annotated[Text, "what it is for"] = ""
    ttl_ms: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_KEY_MS)] | None, "how long it is valid; without end by default"
    ] = None


class RotateRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v0/keys/:key/rotate`."""

    overlap_ms: Annotated[
        int, Meta(ge=0, le=MAX_ROTATION_MS, description="how long the old secret stays valid; a day by default")
    ] = MAX_TTL_MS


class RevokeRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v0/tokens/revoke`. Without `id` and `key` it revokes the tokens of all keys."""

    id: Annotated[Annotated[str, Meta(min_length=1, max_length=MAX_TEXT_CHARS)] | None, "revoke this token"] = None
    key: Annotated[str | None, "revoke the tokens of this key"] = None
    before: Annotated[U64 | None, "only tokens that were issued before this time; now by default"] = None


# --- what is stored


class StoredKey(Struct, frozen=True, kw_only=True, tag="key"):
    """A key that the data directory has. A change replaces it, so a thread may read it."""

    name: str
    rights: Rights
    digests: tuple[tuple[bytes, int | None], ...]  # SHA-256 of each valid secret, and when it ends
    created_ms: int
    expires_ms: int | None
    note: str
    by: str  # the key that created it

    @property
    def id(self) -> str:
        return f"{self.name}@{self.created_ms}"


class Revocation(Struct, frozen=True, kw_only=True, tag="revoked"):
    """Tokens that are not valid: one, those of a key, or all, if they were issued before a time."""

    name: str  # of the row: `token>ID`, `key>ID`, or `all>`
    before_ms: int
    until_ms: int  # by then all of these tokens have expired


# --- answers


class TokenCreated(Struct):
    token: Annotated[str, "the token: send it like a key"]
    id: Annotated[str, "its id, to revoke it"]
    expires_at: Annotated[U64, "milliseconds since 1970"]
    rights: Annotated[Rights, "what it allows; an omitted field limits nothing"]
    performance: Performance


class TokensRevoked(Struct):
    revoked: Annotated[str, "what was revoked"]
    performance: Performance


class KeyState(Struct, kw_only=True):
    """A key. Its secret is shown once: when it is created or rotated."""

    key: Annotated[str, "its name"]
    source: Annotated[str, "`stored`, or `settings` for a key of the environment or the key file"]
    rights: Annotated[Rights, "what it allows; an omitted field limits nothing"]
    note: Annotated[str, "what it is for"] = ""
    created_at: Annotated[U64 | None, "when it was created; null for a key of the settings"] = None
    created_by: Annotated[str | None, "the key that created it"] = None
    expires_at: Annotated[U64 | None, "null: never"] = None
    last_used_at: Annotated[U64 | None, "its last request since the start of the server"] = None
    rotating_until: Annotated[U64 | None, "until then an older secret is valid, too"] = None


class KeyCreated(KeyState, kw_only=True):
    """A key, and its new secret."""

    created: Annotated[bool, "whether the key is new"]
    secret: Annotated[str, "the secret: send it as `authorization: Bearer SECRET`"]
    performance: Performance


class KeyList(Struct, omit_defaults=True):
    keys: Annotated[list[KeyState], "all keys that the key of the request covers"]
    performance: Performance


class KeyDropped(Struct):
    key: Annotated[str, "its name"]
    deleted: Annotated[bool, "whether the key existed"]
    performance: Performance


def grant(request: RightsRequest, whole: Rights) -> Rights:
    """Return the rights that a request asks for. Raise `forbidden` if they go beyond `whole`."""
    given = {
        field: value for field in Rights.__struct_fields__ if (value := getattr(request, field)) is not UNSET
    }  # fmt: skip
    if "names" in given or "prefixes" in given:
        given = {"names": (), "prefixes": ()} | given
    rights = check_rights(structs.replace(whole, **given))
    if (field := rights.excess(whole)) is not None:
        raise TopicsError(
            Code.FORBIDDEN, f"{field}: a key cannot give more than it has; see /v0/whoami", detail={"field": field}
        )
    return rights


def check_rights(rights: Rights) -> Rights:
    """Return the rights. Raise `invalid_request` if they could not mean anything."""
    if not rights.scopes:
        raise invalid("scopes is empty: name at least one of read, write, delete, admin", field="scopes")
    for field, names in (("prefixes", rights.prefixes), ("names", rights.names)):
        if not all(map(is_prefix, names)):
            raise invalid(f"{field} has a text that no name can begin with", field=field)
    if not all(origin == origin.lower() and "://" in origin for origin in rights.origins):
        raise invalid("origins are like https://app.example, in lower case", field="origins")
    if min(rights.max_streams, rights.max_inflight, rights.rate) < 0:
        raise invalid("a limit is negative", field="rate")
    return rights


def check_key_name(name: str) -> str:
    """Return the name of a key to create. Keys of the settings are called `key1`, `key2` …"""
    if check_key(name).startswith("key") and name[3:].isdigit():
        raise invalid("names like key1 are those of keys in the settings", field="key")
    return name
