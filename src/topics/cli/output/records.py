"""Records and gaps of a topic as lines of a terminal."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Raw, Struct

from topics.cli.output.screen import Screen
from topics.cli.output.units import moment, printable
from topics.clock import SystemClock
from topics.plurals import counted


class Shown(Struct, rename={"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}):
    """The parts of a record that a line shows. `data` stays as it was written."""

    seq: int
    ts: int
    data: Raw = Raw(b"null")
    node: str | None = None
    tag: str | None = None
    meta: Raw = Raw(b"")
    topic: str = ""


class Gap(Struct):
    """A lost range as the server reports it, in a tombstone."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    topic: str = ""


_decode = msgspec.json.Decoder(Shown).decode


def print_record(screen: Screen, raw: bytes, *, topic: str = "") -> None:
    """Print a record: seq, time, topic, tag, node, data, meta."""
    record = _shown(raw)
    words = [
        screen.paint(f"{record.seq:>6}", "green"),
        screen.paint(moment(record.ts, SystemClock().now_ms()), "dim"),
    ]
    if topic:
        words.append(screen.paint(topic, "cyan"))
    if record.tag is not None:
        words.append(screen.paint(printable(record.tag), "yellow"))
    if record.node is not None:
        words.append(screen.paint("@" + printable(record.node), "dim"))
    words.append(printable(bytes(record.data).decode(errors="replace")))
    if record.meta:
        words.append(screen.paint(printable(bytes(record.meta).decode(errors="replace")), "dim"))
    screen.line("  ".join(words))


def _shown(raw: bytes) -> Shown:
    """Decode a record. The decoder refuses half a surrogate pair; `json` keeps it."""
    try:
        return _decode(raw)
    except msgspec.DecodeError:
        value = json.loads(raw)
        data, meta = (Raw(json.dumps(value[name]).encode() if name in value else b"") for name in ("data", "meta"))
        return Shown(value["$seq"], value["$ts"], data, value.get("$node"), value.get("$tag"), meta)


def print_gap(screen: Screen, tombstone: bytes | dict[str, Any], *, topic: str = "") -> None:
    """Print a lost range: its seqs, its reason, and the number of records in it."""
    gap = msgspec.json.decode(tombstone, type=Gap) if isinstance(tombstone, bytes) else msgspec.convert(tombstone, Gap)
    where = f"{topic}  " if topic else ""
    if gap.reason == "recreated":
        text = f"{where}the topic was created again: its records start over"
    else:
        missed = f", {counted(gap.missed_estimate, 'record')}" if gap.missed_estimate else ""
        text = f"{where}lost seqs {gap.gap_from} to {gap.gap_to} ({gap.reason}{missed})"
    screen.line(screen.paint(f"  ────  {text}  ────", "red"))
