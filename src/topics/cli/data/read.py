"""`topics read`: the records of a topic, once or as they come, with the gaps between them."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from typing import Any

import msgspec

from topics.cli.command import Args, Call, Command, Curl, Subparsers, add, topic_argument
from topics.cli.connect.request import Request, get, given, tag_match, topic_path
from topics.cli.data import record_stream
from topics.cli.data.record_stream import Position
from topics.cli.output.failures import EXIT_DONE, usage
from topics.cli.output.records import Gap, print_gap, print_record
from topics.cli.output.units import parse_count, parse_duration, parse_positive, parse_time
from topics.clock import SystemClock

WIDEN = 4


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    add(subparsers, READ)


def _arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser)
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--from", dest="first", metavar="SEQ", type=parse_count, help="first seq to read [the earliest]")
    start.add_argument("--ago", metavar="DURATION", type=parse_duration, help="start this long ago, such as 1h")
    start.add_argument(
        "--since", metavar="TIME", type=parse_time, help="start at this time (ISO 8601, or milliseconds)"
    )
    start.add_argument(
        "-n", "--last", metavar="N", type=parse_count, help="the last N records; 0 with -f: only new ones"
    )
    parser.add_argument(
        "--to", dest="last_seq", metavar="SEQ", type=parse_count, help="last seq to read [the head]; -f ends there"
    )
    parser.add_argument("--limit", metavar="N", type=parse_positive, help="stop after N records")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new records")
    parser.add_argument("--tag", metavar="TAG", help="only this tag; a trailing * matches the beginning")
    parser.add_argument("--skip-node", metavar="NODE", action="append", help="leave out records of this writer")
    parser.add_argument("--data", action="store_true", help="print only the data of each record")


def _fields(args: Args) -> dict[str, Any]:
    """Return the filters, which `scan` and `diff` share."""
    return given(filter=None if args.tag is None else tag_match(args.tag), node=args.skip_node, include_tags=True)


def _request(args: Args, start: Position | None = None) -> Request:
    from_ts = args.since if args.ago is None else SystemClock().now_ms() - args.ago
    at = start or Position(max((args.first or 1) - 1, 0))
    body = {**_fields(args), **given(from_seq=at.seq, upto_seq=args.last_seq, epoch=at.epoch)}
    if start is None and from_ts is not None:
        body["from_ts"] = from_ts
    return Request(method="POST", path=topic_path(args.topic, "scan"), body=body, accept="application/x-ndjson")


def _run(call: Call) -> int:
    printer = Printer(call)
    try:
        waiting = _after_head(call)
        if waiting is not None:
            position = waiting
        elif call.args.last is not None:
            position = _read_last(call, printer)
        else:
            position = record_stream.scan(call, _request(call.args), _again(call), printer)
        if call.args.follow:
            call.screen.flush()
            first, last = call.args.first or 1, call.args.last_seq
            sink = printer if first <= 1 and last is None else Window(printer, first, last)
            record_stream.follow(call, call.args.topic, position, _fields(call.args), sink, until_seq=last)
    except Enough:
        pass
    return EXIT_DONE


def _after_head(call: Call) -> Position | None:
    """Note each seq of the options that is after the head. Return the head if `--from` is, so nothing can be read yet.

    The server takes a cursor after the head for one of an earlier epoch and answers with the whole topic.
    """
    first, last = call.args.first or 0, call.args.last_seq or 0
    if call.args.last_seq is not None and first > last:
        raise usage(f"--from {first} is after --to {last}", "exchange the two seqs")
    if max(first, last) <= 1:
        return None
    state = call.server.json(get(topic_path(call.args.topic, touch=False)))
    head = state["head_seq"]
    then = "; waiting for it" if call.args.follow else ""
    for seq in dict.fromkeys((first, last)):
        if seq > head and (seq == last or seq > head + 1):
            call.screen.note(f"{seq:,} is after the head, {head:,}{then}", "yellow")
    return Position(head, state["epoch"]) if first > head + 1 else None


def _again(call: Call) -> Any:
    return lambda position: _request(call.args, position)


def _read_last(call: Call, printer: Printer) -> Position:
    """Print the last N records. Look further back where records were deleted or do not match."""
    state = call.server.json(get(topic_path(call.args.topic, touch=False)))
    head, wanted = state["head_seq"], call.args.last
    if not wanted:
        return Position(head, state["epoch"])
    span = wanted
    while True:
        start = max(head - span, state["earliest_seq"] - 1, 0)
        kept: deque[tuple[bytes, bool]] = deque(maxlen=2 * wanted)
        found = Counted(kept)
        position = record_stream.scan(call, _request(call.args, Position(start)), _again(call), found)
        if found.records >= wanted or start <= max(state["earliest_seq"] - 1, 0):
            break
        span *= WIDEN
    skip = sum(is_record for _, is_record in kept) - wanted
    for line, is_record in kept:
        if is_record and skip > 0:
            skip -= 1
            continue
        printer.record(line) if is_record else printer.gap(line)
    return position


class Enough(Exception):
    """`--limit` records were printed."""


class Counted:
    """Keeps the last lines of a read."""

    def __init__(self, kept: deque[tuple[bytes, bool]]) -> None:
        self._kept = kept
        self.records = 0

    def block(self, lines: bytes) -> bool:
        return False

    def record(self, line: bytes) -> None:
        self._kept.append((line, True))
        self.records += 1

    def gap(self, tombstone: bytes) -> None:
        self._kept.append((tombstone, False))

    def flush(self) -> None: ...


class Window:
    """Passes on the records from `first` to `last`, and the gaps that reach into this range.

    A topic that was created again starts over at seq 1, so everything of the new epoch is passed on.
    """

    def __init__(self, sink: record_stream.Sink, first: int, last: int | None) -> None:
        self._sink, self._first, self._last = sink, first, last
        self.flush = sink.flush

    def block(self, lines: bytes) -> bool:
        return False

    def record(self, line: bytes) -> None:
        seq = record_stream.seq_of(line)
        if seq >= self._first and (self._last is None or seq <= self._last):
            self._sink.record(line)

    def gap(self, tombstone: bytes) -> None:
        gap = msgspec.json.decode(tombstone, type=Gap)
        if gap.reason == "recreated":
            self._first = 0
        if gap.gap_to >= self._first:
            self._sink.gap(tombstone)


class Printer:
    """Prints records and gaps: coloured lines for a person, otherwise the JSON lines of the server as they are."""

    def __init__(self, call: Call) -> None:
        self._screen, self._data_only, self._left = call.screen, call.args.data, call.args.limit
        # Whole blocks can be passed on if no option needs single lines: a pipe then gets millions a second.
        self._takes_blocks = not call.screen.is_human and not self._data_only and self._left is None
        self._write = sys.stdout.buffer.write

    def block(self, lines: bytes) -> bool:
        if self._takes_blocks:
            self._write(lines)
        return self._takes_blocks

    def record(self, line: bytes) -> None:
        if self._data_only:
            self._write(bytes(msgspec.json.decode(line, type=record_stream.OnlyData).data) + b"\n")
        elif self._screen.is_human:
            print_record(self._screen, line)
        else:
            self._write(line + b"\n")
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise Enough

    def gap(self, tombstone: bytes) -> None:
        if self._screen.is_human:
            print_gap(self._screen, tombstone)
        elif self._data_only:
            self._screen.warn(f"records were lost: {tombstone.decode()}")
        else:
            self._write(b'{"tombstone":' + tombstone + b"}\n")

    def flush(self) -> None:
        self._screen.flush()


def _curl_notes(args: Args, curl: Curl) -> list[str]:
    notes = []
    if args.last is not None:
        notes.append(
            f"--last {args.last}: the command first asks for the head, and starts {args.last:,} seqs before it"
        )
    if args.follow:
        poll = record_stream.poll(args.topic, Position(args.first - 1 if args.first else 0), _fields(args))
        notes += [
            "-f: the command then repeats this request, from the next_from_seq of the answer before it:",
            curl(poll),
        ]
    return notes


READ = Command(
    name="read",
    help="read the records of a topic; -f follows it",
    arguments=_arguments,
    request=_request,
    run=_run,
    curl_notes=_curl_notes,
    details="Gaps where records were lost are printed between the records.",
    examples="""\
  topics read orders --last 10 -f
  topics read orders --from 42 --to 99
  topics read orders --ago 1h --tag 'eu:*'
  topics read orders --data > orders.jsonl
""",
)
