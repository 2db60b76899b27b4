"""A filter on fields, evaluated as simply as possible: decode everything, then look."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

MISSING = object()


class Number(Fraction):
    """A JSON number: never equal to true or false."""


def loads(text: bytes) -> Any:
    return json.loads(text, parse_int=Number, parse_float=Number)


def matches(wanted: Any, data: bytes, meta: bytes | None = None, tag: str | None = None) -> bool:
    """Return whether a record matches a filter in its JSON form, with numbers as `Number`."""
    if wanted[0] == "And":
        return all(matches(part, data, meta, tag) for part in wanted[1])
    if wanted[0] == "Or":
        return any(matches(part, data, meta, tag) for part in wanted[1])
    if wanted[0] == "Not":
        return not matches(wanted[1], data, meta, tag)
    path = wanted[0].split(".") if isinstance(wanted[0], str) else [str(part) for part in wanted[0]]
    record = {"data": loads(data)}
    if meta is not None:
        record["meta"] = loads(meta)
    if tag is not None:
        record["tag"] = tag
    if wanted[1] == "Grep":
        text = data if path == ["data"] else meta
        forms = (wanted[2], json.dumps(wanted[2])[1:-1], json.dumps(wanted[2], ensure_ascii=False)[1:-1])
        return text is not None and any(form.encode() in text for form in forms)
    value = found(record, path)
    if value is MISSING:
        return False
    return holds(value, wanted[1], wanted[2] if len(wanted) > 2 else None)


def found(value: Any, path: list[str]) -> Any:
    for name in path:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdigit() and str(int(name)) == name and int(name) < len(value):
            value = value[int(name)]
        else:
            return MISSING
    return value


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and a == b


def holds(value: Any, op: str, wanted: Any) -> bool:
    if op == "Eq":
        return same(value, wanted)
    if op == "Ne":
        return not same(value, wanted)
    if op == "In":
        return any(same(value, one) for one in wanted)
    if op == "Exists":
        return True
    if op == "Contains":
        if isinstance(value, list):
            return any(same(one, wanted) for one in value)
        return isinstance(value, str) and isinstance(wanted, str) and wanted in value
    if op == "Glob":
        return isinstance(value, str) and globs(value, wanted)
    if type(value) is not type(wanted) or not isinstance(value, str | Number):
        return False
    return {"Lt": value < wanted, "Le": value <= wanted, "Gt": value > wanted, "Ge": value >= wanted}[op]


def globs(text: str, pattern: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(globs(text[at:], pattern[1:]) for at in range(len(text) + 1))
    return text[:1] == pattern[0] and globs(text[1:], pattern[1:])


# --- random pairs

NAMES = ["a", "b", "id", "ä", "a b", "0", "1", "x/y", "e", "", 'quo"te', "\U0001f600"]
TEXTS = [
    *NAMES,
    "Ada",
    "ada",
    "7",
    "Ada Lovelace",
    "a*b",
    "back\\slash",
    "line\nbreak",
    "é",
    "\u2028",
    "true",
    "AdaAda",
]
GREPPED = ["Ada", "a b", "ä", 'quo"te', "\\", "x/y", "line\n", "😀", "é"]
NUMBERS = [
    "0", "-0", "0.0", "0e5", "7", "7.0", "7e0", "70e-1", "0.7E+1", "700e-2", "-7", "7.5", "75e-1", "100", "1e2", "1E2",
    "9007199254740992", "9007199254740993", "9007199254740993.0", "900719925474099.3e1", "18446744073709551616",
    "0.1", "0.10", "0.1000000000000000055511151231257827", "1e400", "10e399", "1e-400",
    "123456789012345678901234567890",
    "3499", "34.99e2", "3.499e3", "0.3499e4",
]  # fmt: skip


class Pairs:
    """Random records, and filters that match some of them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def record(self) -> tuple[bytes, bytes | None, str | None]:
        rng = self.rng
        meta = self.object(1) if rng.random() < 0.3 else None
        data = self.value(0) if rng.random() < 0.2 else self.object(0)
        return data.encode(), None if meta is None else meta.encode(), rng.choice([None, "t", "t:1", "x"])

    def text(self, text: str) -> str:
        """Return a JSON text, with any of its forms for each character."""
        rng, out = self.rng, []
        escapes = rng.random() < 0.3
        for char in text:
            short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\n": "\\n"}.get(char)
            code = json.dumps(char)[1:-1] if ord(char) > 0xFFFF else f"\\u{ord(char):04x}"
            if escapes and rng.random() < 0.4:
                out.append(rng.choice([code, code.upper().replace("\\U", "\\u")]))
            elif short is not None and (char != "/" or rng.random() < 0.3):
                out.append(short)
            else:
                out.append(char)
        if rng.random() < 0.02:
            out.append("\\ud83d")  # a lone surrogate
        return f'"{"".join(out)}"'

    def space(self) -> str:
        return self.rng.choice(["", "", "", " ", "\t "])

    def object(self, depth: int) -> str:
        """Return an object. Names may repeat."""
        members = [
            f"{self.space()}{self.text(self.rng.choice(NAMES))}{self.space()}:{self.space()}{self.value(depth + 1)}"
            for _ in range(self.rng.choice([0, 1, 2, 4, 8]))
        ]
        return "{" + ",".join(members) + self.space() + "}"

    def value(self, depth: int) -> str:
        rng, kind = self.rng, self.rng.random()
        if depth < 6 and kind < 0.25:
            return self.object(depth + 1)
        if depth < 6 and kind < 0.4:
            return "[" + ",".join(self.value(depth + 1) for _ in range(rng.choice([0, 1, 3]))) + "]"
        if kind < 0.7:
            return rng.choice(NUMBERS)
        return self.text(rng.choice(TEXTS)) if kind < 0.9 else rng.choice(["true", "false", "null"])

    def scalar(self) -> str:
        """Return a value for a filter as JSON text."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(NUMBERS)
        return rng.choice([json.dumps(rng.choice(TEXTS), ensure_ascii=False), "true", "null"])

    def filter(self, depth: int = 0) -> str:
        """Return a filter as JSON text."""
        rng, kind = self.rng, self.rng.random()
        if depth < 3 and kind < 0.3:
            parts = ",".join(self.filter(depth + 1) for _ in range(rng.choice([1, 2, 3])))
            return f'["{rng.choice(["And", "Or"])}",[{parts}]]'
        if depth < 3 and kind < 0.4:
            return f'["Not",{self.filter(depth + 1)}]'
        if kind < 0.45:
            return rng.choice(['["tag","Ne","t"]', '["tag","Glob","t*"]', '["tag","Exists"]', '["tag","In",["x",1]]'])
        names = [rng.choice(NAMES) for _ in range(rng.choice([0, 1, 1, 1, 2, 2, 3]))]
        path = json.dumps([rng.choice(["data", "data", "data", "meta"]), *names])
        op = rng.choice(["Eq", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "In", "Glob", "Contains", "Grep", "Exists"])
        if op == "In":
            value = f"[{','.join(self.scalar() for _ in range(rng.choice([1, 3])))}]"
        elif op == "Exists":
            value = "true"
        elif op in ("Lt", "Le", "Gt", "Ge"):
            value = rng.choice([*NUMBERS, '"Ada"', '"\\u00e9"'])
        elif op == "Glob":
            text = rng.choice([text for text in TEXTS if text])
            at = rng.randrange(len(text))
            value = json.dumps(rng.choice([text, text[:at] + "*" + text[at + 1 :], "*" + text, text[:2] + "*", "*"]))
        elif op == "Grep":
            path, value = (
                '"data"',
                json.dumps(rng.choice(GREPPED)),
            )
        else:
            value = self.scalar()
        return f"[{path},{json.dumps(op)},{value}]"
