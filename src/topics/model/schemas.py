"""The schema of a topic: JSON Schema 2020-12 for the `data` of its records. Pure.

A schema is part of the configuration, with all its versions, so it is as durable as that: no entry, snapshot part or
object of a replica is its own. `jsonschema-rs` checks records and compares versions; it is in the extra `schema`, and
imported with the first schema.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import msgspec

from topics.errors import Code, TopicsError, invalid

if TYPE_CHECKING:
    from jsonschema_rs import Validator

SchemaMode = Literal["reject", "warn", "off"]
Compatibility = Literal["backward", "forward", "full", "none"]

MAX_SCHEMA_BYTES = 64 << 10
MAX_VERSIONS = 100
MAX_CACHED = 1000
MAX_EXPANDED = 10_000  # parts of a schema, with each reference in the place of the part that it refers to
SHOWN_CHARS = 200
REFERENCES = ("$ref", "$dynamicRef", "$schema")

Schema = dict[str, Any]
_validators: dict[int, tuple[Schema, Validator]] = {}  # by the identity of the schema, which the entry keeps alive


def checked(name: str, current: Any, new: Any, *, force: bool) -> tuple[Schema, ...]:
    """Return the versions of a topic that gets the schema of `new`. Raise an error if it may not get it.

    Both are configurations; a new topic has no current one, and may come with versions: it is a copy.
    """
    versions: tuple[Schema, ...] = () if current is None else current.schema_versions
    if new.schema_versions != versions:
        if current is not None:
            raise invalid("schema_versions is kept by the server: send only schema", field="schema_versions")
        versions = new.schema_versions
    schema, before = new.schema, None if current is None else current.schema
    if schema is None or schema == before:
        added: tuple[Schema, ...] = ()
    else:
        last = before if before is not None else versions[-1] if versions else None
        added = () if schema == last else (schema,)
        if last is not None and not force and (why := _incompatible(last, schema, new.compatibility)):
            raise TopicsError(
                Code.SCHEMA_INCOMPATIBLE,
                f'topic "{name}": {why}; change the schema, set another compatibility, or send "force": true',
                detail={"topic": name, "version": len(versions), "compatibility": new.compatibility},
            )
    for one in added if current is not None else (*versions, *added):
        if len(msgspec.json.encode(one)) > MAX_SCHEMA_BYTES:
            raise invalid(f"schema has more than {MAX_SCHEMA_BYTES} bytes", field="schema")
        validator_of(one)
    if len(versions) + len(added) > MAX_VERSIONS:
        raise invalid(f"schema: a topic keeps at most {MAX_VERSIONS} versions", field="schema")
    return (*versions, *added)


def validator_of(schema: Schema) -> Validator:
    """Return what checks records against a schema. Raise `invalid_request` for a schema that is none."""
    known = _validators.get(id(schema))
    if known is not None and known[0] is schema:
        return known[1]
    rs = _library()
    try:
        outside, parts = next(_references(schema), None), _expanded(schema, schema, {})
    except RecursionError:
        raise invalid("schema is nested too deeply, or its references are", field="schema") from None
    if outside is not None:
        what = f"schema refers to {outside[:SHOWN_CHARS]!r}: only references within it (#…) are allowed"
        raise invalid(what, field="schema")
    if parts > MAX_EXPANDED:
        what = f"schema has more than {MAX_EXPANDED} parts with its references: refer to fewer parts more than once"
        raise invalid(what, field="schema")
    try:
        found: Validator = rs.Draft202012Validator(schema, offline=True, validate_formats=True)
    except (rs.ValidationError, rs.ReferencingError, ValueError) as error:
        what = str(error).splitlines()[0][:SHOWN_CHARS]
        raise invalid(f"schema is no JSON Schema 2020-12: {what}", field="schema") from None
    if len(_validators) >= MAX_CACHED:
        _validators.clear()
    _validators[id(schema)] = schema, found
    return found


def violation(schema: Schema, records: Sequence[Any], low: int = 0, high: int | None = None) -> TopicsError | None:
    """Return the error of the first record from `low` to `high` whose `data` does not match the schema."""
    validator = validator_of(schema)
    for at, record in enumerate(records[low:high], low):
        try:
            value = _decoded(record.data)
            if validator.is_valid(value):
                continue
            error = next(iter(validator.iter_errors(value)))
        except (ValueError, RecursionError) as failure:  # nested too deeply
            return _violated(at, "", "", f"it cannot be checked: {failure}")
        path = "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in error.instance_path)
        return _violated(at, path, "/".join(map(str, error.schema_path)), error.message)
    return None


def _decoded(data: Any) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return json.loads(bytes(data))  # half a surrogate pair


def _violated(at: int, path: str, rule: str, why: str) -> TopicsError:
    return TopicsError(
        Code.SCHEMA_VIOLATION,
        f"records[{at}].data{path} does not match the schema of the topic: {why[:SHOWN_CHARS]}",
        detail={"record": at, "path": f"data{path}", "rule": rule},
    )


def _library() -> Any:
    try:
        import jsonschema_rs
    except ImportError:
        what = "this server cannot check schemas: install its extra `schema` (jsonschema-rs) and start it again"
        raise TopicsError(Code.READ_ONLY, what, detail={"reason": "jsonschema-rs"}) from None
    return jsonschema_rs


def _references(schema: Any) -> Iterator[str]:
    """Yield the references of a schema to other documents."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            is_reference = name in REFERENCES[:2] and isinstance(value, str) and not value.startswith("#")
            if is_reference or (name == "$schema" and "2020-12" not in str(value)):
                yield str(value)
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _expanded(part: Any, whole: Schema, known: dict[int, int]) -> int:
    """Return how many parts there are if each reference is the part that it refers to, but for one to itself.

    A check takes time for each: with two references at each of 30 levels, a record would hold the loop for minutes.
    """
    if not isinstance(part, dict | list):
        return 0
    if id(part) not in known:
        known[id(part)] = 0  # while it is being counted: a reference to itself needs a smaller part of the record
        members = list(part)
        if isinstance(part, dict):
            whole = part if isinstance(part.get("$id"), str) else whole
            named = [one for name in REFERENCES[:2] if isinstance(one := part.get(name), str)]
            members = [*part.values(), *(_target(one[1:], whole) for one in named)]
        known[id(part)] = 1 + sum(_expanded(one, whole, known) for one in members)
    return known[id(part)]


def _target(reference: str, whole: Schema) -> Any:
    """Return the part that a JSON pointer (`/$defs/a`) or an anchor (`a`) of the schema refers to, or None."""
    if reference and not reference.startswith("/"):
        return next(_anchored(reference, whole), None)
    found: Any = whole
    for name in unquote(reference).split("/")[1:]:
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found


def _anchored(name: str, part: Any) -> Iterator[Any]:
    """Yield the parts with this anchor."""
    if isinstance(part, dict):
        if name in (part.get("$anchor"), part.get("$dynamicAnchor")):
            yield part
        part = list(part.values())
    for one in part if isinstance(part, list) else ():
        yield from _anchored(name, one)


# --- versions


def _incompatible(old: Schema, new: Schema, compatibility: Compatibility) -> str:
    """Return why a schema may not follow another one, or nothing.

    A field that a schema does not name counts as absent from its records. Otherwise no field could be added to an
    object that allows others.
    """
    backward, forward = compatibility in ("backward", "full"), compatibility in ("forward", "full")
    if backward and not _covers(new, old):
        return f"a record that matched the last schema may not match the new one{_where(new, old)}"
    if forward and not _covers(old, new):
        return f"a record that matches the new schema may not match the last one{_where(old, new)}"
    return ""


def _covers(one: Schema | bool, other: Schema | bool) -> bool:
    """Return whether all records of the schema `other` are known to match `one`."""
    rs = _library()
    try:
        wide, narrow = (rs.canonicalize(schema, draft=rs.Draft202012, offline=True) for schema in (one, _closed(other)))
        return bool(wide.covers(narrow) == rs.canonical.Containment.YES)
    except (rs.canonical.CanonicalizationError, ValueError):
        return False


def _where(one: Schema, other: Schema) -> str:
    """Return the fields by which `one` does not cover `other`."""
    mine, theirs = one.get("properties", {}), other.get("properties", {})
    found = [name for name in mine if name in theirs and not _covers(mine[name], theirs[name])]
    found += [name for name in one.get("required", ()) if name not in other.get("required", ())]
    if one.get("additionalProperties") is False:
        found += [name for name in theirs if name not in mine]
    return f" ({', '.join(dict.fromkeys(found))})" if found else ""


def _closed(schema: Any) -> Any:
    """Return the schema with objects that have no other fields than those that it names."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value if name in ("enum", "const") else _closed(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        found["additionalProperties"] = False
    return found
