"""The fields and values that a request type allows, for error messages. Pure; used only after decoding has failed."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from msgspec import inspect

_PART = re.compile(r"\.(\w+)|\[[^\]]*\]")


@cache
def _type_info(request_type: Any) -> inspect.Type:
    """Return the description of a request type. Kept, because `msgspec` leaves cycles of references with each one."""
    return inspect.type_info(request_type)


def choices(request_type: Any, path: str) -> list[str]:
    """Return the allowed values of the field at `path`, as `$.config.durability`; empty if it is no enumeration."""
    types, tags = _at(request_type, path)
    values = [str(value) for one in types for value in _values(one)]
    return list(dict.fromkeys(values or tags))


def field_names(request_type: Any, path: str) -> list[str]:
    """Return the names of the fields that the object at `path` may have."""
    types, _ = _at(request_type, path)
    found = [one for each in types for one in _alternatives(each)]
    names = [field.encode_name for one in found if isinstance(one, inspect.StructType) for field in one.fields]
    return list(dict.fromkeys(names))


def _at(request_type: Any, path: str) -> tuple[list[inspect.Type], list[str]]:
    """Return the types that the value at `path` may have, and the tags if it is the tag field of a union."""
    types: list[inspect.Type] = [_type_info(request_type)]
    tags: list[str] = []
    for part in _PART.finditer(path):
        name = part[1]
        found = [one for each in types for one in _alternatives(each)]
        tags = [str(one.tag) for one in found if isinstance(one, inspect.StructType) and one.tag_field == name]
        types = list(_fields(found, name) if name is not None else _items(found))
    return types, tags


def _alternatives(one: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that a value of the type may have, each without its annotations."""
    if isinstance(one, inspect.UnionType):
        for alternative in one.types:
            yield from _alternatives(alternative)
    elif isinstance(one, inspect.Metadata):
        yield from _alternatives(one.type)
    else:
        yield one


def _fields(found: list[inspect.Type], name: str) -> Iterator[inspect.Type]:
    for one in found:
        if isinstance(one, inspect.StructType):
            yield from (field.type for field in one.fields if field.encode_name == name)


def _items(found: list[inspect.Type]) -> Iterator[inspect.Type]:
    for one in found:
        if isinstance(one, inspect.ListType):
            yield one.item_type
        elif isinstance(one, inspect.DictType):
            yield one.value_type


def _values(one: inspect.Type) -> Iterator[Any]:
    for alternative in _alternatives(one):
        if isinstance(alternative, inspect.LiteralType):
            yield from alternative.values
