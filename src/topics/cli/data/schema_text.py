"""Types in TypeScript and Python for a JSON Schema, and a schema for the JSON values of a sample. Pure."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_TYPES = {
    "ts": {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"},
    "python": {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"},
}
_ANY, _LIST = {"ts": "unknown", "python": "Any"}, {"ts": "Array<{}>", "python": "list[{}]"}
_MAP = {"ts": "Record<string, {}>", "python": "dict[str, {}]"}
_PLAIN_TYPE = re.compile(r"(?:(?:str|int|float|bool|None|Any|list|dict)\b|[][, |])*|Literal\[[^]]*\]")
_CONSTANTS = {"true": "True", "false": "False", "null": "None"}


def type_name(topic: str) -> str:
    """Return `Orders` for `orders`, and `ShopOrdersEu` for `shop:orders-eu`."""
    name = "".join(part[:1].upper() + part[1:] for part in re.split(r"[^A-Za-z0-9]+", topic))
    return name if name[:1].isalpha() else f"T{name}"


def types(schema: Schema, name: str, language: str) -> str:
    """Return the declarations of the types of a schema. A type that the language cannot express is any value."""
    declared: dict[str, str] = {}
    references: dict[str, str] = {}

    def object_type(one: Schema, called: str) -> str:
        while called in declared:
            called += "_"
        declared[called] = ""  # its place: types that it uses come before or after, as in the schema
        required = one.get("required", ())
        fields = [
            (field, of(inner, called + type_name(field)), field in required, _comment(inner))
            for field, inner in one["properties"].items()
        ]
        declared[called] = (_interface if language == "ts" else _typed_dict)(called, fields, _comment(one))
        return called

    def of(one: Any, called: str) -> str:
        if not isinstance(one, dict):
            return _ANY[language]
        if (reference := one.get("$ref")) is not None:
            if reference not in references:
                target = _resolve(schema, reference)
                references[reference] = called = type_name(reference.rpartition("/")[2]) or called
                references[reference] = of(target, called)
            return references[reference]
        if "const" in one or "enum" in one:
            return _literals(one.get("enum", [one.get("const")]), language)
        if (choices := one.get("anyOf") or one.get("oneOf")) is not None:
            return _union([of(choice, f"{called}{at}") for at, choice in enumerate(choices, 1)])
        kinds = one.get("type", "object" if "properties" in one else None)
        return _union([plain(one, kind, called) for kind in (kinds if isinstance(kinds, list) else [kinds])])

    def plain(one: Schema, kind: str | None, called: str) -> str:
        if kind == "array":
            return _LIST[language].format(of(one.get("items"), f"{called}Item"))
        if kind == "object":
            more = one.get("additionalProperties")
            return (
                object_type(one, called) if one.get("properties") else _MAP[language].format(of(more, f"{called}Value"))
            )
        return _TYPES[language].get(kind or "", _ANY[language])

    root = of(schema, name)
    if root != name:
        declared[name] = (
            f"export type {name} = {root}" if language == "ts" else f"{name}: TypeAlias = {json.dumps(root)}"
        )
    if language == "ts":
        return "\n\n".join(declared.values()) + "\n"
    header = "from typing import Any, Literal, NotRequired, TypeAlias, TypedDict"
    return "\n\n\n".join([header, *declared.values()]) + "\n"


Fields = list[tuple[str, str, bool, str]]


def _interface(name: str, fields: Fields, comment: str) -> str:
    lines = [f"/** {comment} */"] if comment else []
    lines.append(f"export interface {name} {{")
    for field, kind, is_required, text in fields:
        shown = field if re.fullmatch(r"[A-Za-z_$][\w$]*", field) else json.dumps(field)
        lines += [f"  /** {text} */"] if text else []
        lines.append(f"  {shown}{'' if is_required else '?'}: {kind}")
    return "\n".join([*lines, "}"])


def _typed_dict(name: str, fields: Fields, comment: str) -> str:
    kinds = [(field, _quoted(kind), needed, text) for field, kind, needed, text in fields]
    kinds = [(field, kind if needed else f"NotRequired[{kind}]", needed, text) for field, kind, needed, text in kinds]
    if any(not field.isidentifier() or keyword.iskeyword(field) or field[:2] == "__" for field, *_ in kinds):
        body = ", ".join(f"{json.dumps(field)}: {kind}" for field, kind, *_ in kinds)
        return f'{name} = TypedDict("{name}", {{{body}}})'
    lines = [f"class {name}(TypedDict):", *([f"    {json.dumps(comment)}", ""] if comment else [])]
    return "\n".join(
        [*lines, *(f"    {field}: {kind}" + (f"  # {text}" if text else "") for field, kind, _, text in kinds)]
    )


def _quoted(kind: str) -> str:
    """Return a type in quotes if it names a class, which may come later."""
    return kind if _PLAIN_TYPE.fullmatch(kind) else json.dumps(kind)


def _comment(one: Any) -> str:
    text = one.get("description", "") if isinstance(one, dict) else ""
    return " ".join(str(text).replace("*/", "").split())


def _union(kinds: list[str]) -> str:
    return " | ".join(dict.fromkeys(kinds)) or "unknown"


def _literals(values: list[Any], language: str) -> str:
    if any(isinstance(value, list | dict | float) for value in values):
        return _ANY[language]
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    if language == "ts":
        return " | ".join(texts)
    return f"Literal[{', '.join(_CONSTANTS.get(text, text) for text in texts)}]"


def _resolve(schema: Schema, reference: str) -> Any:
    found: Any = schema
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found.get(part.replace("~1", "/").replace("~0", "~"), {}) if isinstance(found, dict) else {}
    return found


# --- from records


def infer(values: list[Any]) -> Schema:
    """Return a schema that all values match. A field is required if every object has it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_of(values)}


_KINDS: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    ("null", lambda value: value is None),
    ("boolean", lambda value: isinstance(value, bool)),
    ("integer", lambda value: isinstance(value, int)),
    ("number", lambda value: isinstance(value, float)),
    ("string", lambda value: isinstance(value, str)),
    ("array", lambda value: isinstance(value, list)),
    ("object", lambda value: isinstance(value, dict)),
)


def _of(values: list[Any]) -> Schema:
    kinds = list(dict.fromkeys(next(name for name, holds in _KINDS if holds(value)) for value in values))
    if "number" in kinds and "integer" in kinds:
        kinds.remove("integer")
    found: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds} if kinds else {}
    if objects := [value for value in values if isinstance(value, dict)]:
        names = dict.fromkeys(name for one in objects for name in one)
        found["properties"] = {name: _of([one[name] for one in objects if name in one]) for name in names}
        found["required"] = [name for name in names if all(name in one for one in objects)]
    if lists := [value for value in values if isinstance(value, list)]:
        found["items"] = _of([inner for one in lists for inner in one])
    return found
