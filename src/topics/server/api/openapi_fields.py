"""What a field of a request, an answer or a message means, for the OpenAPI document and the reference pages.

The meaning is in the annotation of the field, or in `openapi_texts.json` if a name means the same in several types. A
field without either fails `tests/contract/test_openapi.py`. Limits that the settings can change show their default.
"""

from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from msgspec import Struct, json, structs

from topics.model import consumer, inspection, queue, records, router, topic, watch, wire

_LIMITS = {
    "max_hops": router.MAX_HOPS, "priority": topic.PRIORITY_LIMIT, "lease_ms": topic.LEASE_MS_RANGE,
    "claim_jitter_ms": topic.CLAIM_JITTER_MS_RANGE, "max_nodes": records.MAX_NODES,
    "max_key_chars": records.MAX_IDEMPOTENCY_KEY_CHARS, **structs.asdict(records.Limits()),
}  # fmt: skip


class Texts(Struct, forbid_unknown_fields=True):
    """The frame of the document, and texts by name: of parameters, media types, fields, and error codes."""

    document: dict[str, Any]
    path_parameters: dict[str, str]
    query_parameters: dict[str, str]
    answers: dict[str, str]
    fields: dict[str, str]
    errors: dict[str, str]


TEXTS = json.decode(Path(__file__).with_name("openapi_texts.json").read_bytes(), type=Texts)
EVERYWHERE = {name: text.format(**_LIMITS) for name, text in TEXTS.fields.items()}


def types_in(*modules: ModuleType) -> dict[str, type[Struct]]:
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Struct)
    }


TYPES = types_in(consumer, inspection, queue, records, router, topic, watch, wire)


def described(type_name: str) -> dict[str, str]:
    """Return the meanings of the fields of a type that its annotations have, by their names in JSON."""
    kind = TYPES.get(type_name)
    if kind is None:
        return {}
    hints = get_type_hints(kind, include_extras=True)
    texts = {field: getattr(hints[field], "__metadata__", ()) for field in kind.__struct_fields__}
    return {
        name: text
        for name, field in zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
        for text in texts[field]
        if isinstance(text, str)
    }


def meaning(type_name: str, field: str) -> str | None:
    return described(type_name).get(field) or EVERYWHERE.get(field)
