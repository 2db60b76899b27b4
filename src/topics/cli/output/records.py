"""Records and gaps of a topic as lines of a terminal."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from topics.cli.output.screen import Screen
from topics.cli.output.units import moment, printable
from topics.client.items import Tombstone
from topics.plurals import counted

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_elements = msgspec.json.Decoder(list[Raw]).decode


def members(text: bytes) -> dict[str, bytes]:
    """Return the members of a JSON object as they are. The decoder refuses half a surrogate pair; `json` keeps it."""
    try:
        return {name: bytes(value) for name, value in _decode_members(text).items()}
    except msgspec.DecodeError:
        return {name: json.dumps(value).encode() for name, value in json.loads(text).items()}


def elements(text: bytes) -> list[bytes]:
    """Return the elements of a JSON array as they are, with half surrogate pairs as `members` does."""
    try:
        return [bytes(value) for value in _decode_elements(text)]
    except msgspec.DecodeError:
        return [json.dumps(value).encode() for value in json.loads(text)]


_FIELD = re.compile(r"\{\{|\}\}|\{(\w+)((?:\.[^.{}\[\]]+|\[\d+\])*)\}|[{}]")
_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
FIELDS = ("seq", "ts", "time", "topic", "tag", "node", "data", "meta")


def template(text: str) -> Callable[[Screen, bytes], None]:
    """Return a function that prints a record by a template, such as `{seq} {data.items[0].sku}`.

    Text appears as it is, without control characters on a terminal, and everything else as JSON. A field that the
    record lacks is empty. `{{` is a brace.
    """
    for found in _FIELD.finditer(text):
        if found[0] in ("{", "}") or (found[1] and found[1] not in FIELDS):
            raise argparse.ArgumentTypeError(f"{found[0]} in {text!r} is not a field; use {', '.join(FIELDS)}")

    def fill(screen: Screen, raw: bytes) -> None:
        record: Any = {name.removeprefix("$"): value for name, value in json.loads(raw).items()}
        record["time"] = datetime.fromtimestamp(record["ts"] / 1000, UTC).isoformat(timespec="milliseconds")

        def value(found: re.Match[str]) -> str:
            if found[1] is None:
                return found[0][0]
            value = record.get(found[1])
            for name, at in _STEP.findall(found[2]):
                if isinstance(value, dict):
                    value = value.get(name)
                elif isinstance(value, list) and at and int(at) < len(value):
                    value = value[int(at)]
                else:
                    return ""
            if not isinstance(value, str):
                value = "" if value is None else json.dumps(value, ensure_ascii=False)
            return printable(value) if screen.is_human else value

        screen.line(_FIELD.sub(value, text))

    return fill


def print_record(screen: Screen, raw: bytes, *, topic: str = "") -> None:
    """Print a record: seq, time, topic, tag, node, data, meta."""
    record = members(raw)
    tag, node = (json.loads(record.get(name, b"null")) for name in ("$tag", "$node"))
    words = [
        screen.paint(f"{int(record['$seq']):>6}", "green"),
        screen.paint(moment(int(record["$ts"])), "dim"),
    ]
    if topic:
        words.append(screen.paint(topic, "cyan"))
    if tag is not None:
        words.append(screen.paint(printable(tag), "yellow"))
    if node is not None:
        words.append(screen.paint("@" + printable(node), "dim"))
    words.append(printable(record.get("data", b"null").decode(errors="replace")))
    if "meta" in record:
        words.append(screen.paint(printable(record["meta"].decode(errors="replace")), "dim"))
    screen.line("  ".join(words))


def print_gap(screen: Screen, tombstone: bytes | dict[str, Any], *, topic: str = "") -> None:
    """Print a lost range: its seqs, its reason, and the number of records in it."""
    if isinstance(tombstone, bytes):
        tombstone = json.loads(tombstone)
    gap = msgspec.convert(tombstone, Tombstone)
    where = f"{topic}  " if topic else ""
    if gap.reason == "recreated":
        text = f"{where}the topic was created again: its records start over"
    else:
        missed = f", {counted(gap.missed_estimate, 'record')}" if gap.missed_estimate else ""
        text = f"{where}lost seqs {gap.gap_from} to {gap.gap_to} ({gap.reason}{missed})"
    screen.line(screen.paint(f"  ────  {text}  ────", "red"))
