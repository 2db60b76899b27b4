"""`topics read` and `topics watch`: the records of a topic or of many, once or as they come, with the gaps between."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import msgspec
from msgspec import Raw

from topics.cli.command import Args, Call, Command
from topics.cli.connect import get, post, put
from topics.cli.options import FILTERS, TOPIC, one_of, option
from topics.cli.output.failures import EXIT_NOT_FOUND, Failure, usage
from topics.cli.output.records import elements, members, print_gap, print_record, template
from topics.cli.output.units import parse_count, parse_positive, parse_time
from topics.cli.tree import Subparsers
from topics.client.call import NDJSON, Request, consumer_path, filter_of, given, topic_path
from topics.client.errors import TopicsError, Unreachable
from topics.client.items import End, Position, Tombstone
from topics.client.streams import ScanLines
from topics.clock import SystemClock
from topics.errors import Code

FORMAT = option("--format TEXT", "print this for each record, such as '{seq} {data.sku}'", type=template)
WAIT_MS = 20_000
PAUSE_S = 0.5
MAX_ATTEMPTS = 5
PAGE_RECORDS = 1000
WIDEN = 4

Piece = bytes | Raw
"""Whole lines with a record each, or the text of a tombstone."""


def _fields(args: Args) -> dict[str, Any]:
    """Return the filters, which `scan` and `diff` share."""
    return given(filter=filter_of(args.tag, args.where, args.grep), node=args.skip_node, include_tags=True)


def _request(args: Args, start: Position | None = None) -> Request:
    from_ts = args.since if args.ago is None else SystemClock().now_ms() - args.ago
    at = start or Position(max((args.first or 1) - 1, 0))
    body = {**_fields(args), **given(from_seq=at.seq, upto_seq=args.last_seq, epoch=at.epoch)}
    if start is None and from_ts is not None:
        body["from_ts"] = from_ts
    return post(topic_path(args.topic, "scan"), body, accept=NDJSON)


@Command(
    "read",
    options=(
        TOPIC,
        one_of(
            option("--from SEQ", "first seq to read [the earliest]", dest="first"),
            option("--ago DURATION", "start this long ago, such as 1h"),
            option("--since TIME", "start at this time (ISO 8601, or milliseconds)", type=parse_time),
            option("-n --last N", "the last N records; 0 with -f: only new ones", type=parse_count),
            option("--consumer NAME", "start after the position of this consumer; --commit moves it"),
        ),
        option("--commit", "set the position of --consumer to the last record that was printed"),
        option("--to SEQ", "last seq to read [the head]; -f ends there", dest="last_seq"),
        option("--limit N", "stop after N records"),
        option("-f --follow", "keep printing new records"),
        *FILTERS,
        option("--skip-node NODE", "leave out records of this writer", action="append"),
        one_of(option("--data", "print only the data of each record"), FORMAT),
    ),
    request=_request,
    details="Gaps where records were lost are printed between the records.",
    examples="""\
  topics read orders --last 10 -f
  topics read orders --from 42 --to 99
  topics read orders --ago 1h --tag 'eu:*'
  topics read orders --where 'customer.id = 7 and total > 100' --grep Ada
  topics read orders --data > orders.jsonl
""",
)
def read(call: Call) -> None:
    reader, args = Reader(call), call.args
    if args.commit and args.consumer is None:
        raise usage("--commit needs --consumer")
    if args.consumer is not None:
        found = call.server.json(get(consumer_path(args.topic, args.consumer)))
        args.first = found["seq"] + 1
    pieces: Iterator[Piece] = iter(())
    waiting = _after_head(call)
    if waiting is not None:
        reader.position = waiting
    else:
        pieces = reader.scan() if args.last is None else _last(call, reader)
    if args.follow:
        pieces = chain(pieces, within(reader.follow(), args.first or 1, args.last_seq))
    _show(call, pieces, partial(_commit, call) if args.commit else lambda piece: None)


def _commit(call: Call, piece: Piece) -> None:
    """Move the consumer behind a piece that was printed."""
    call.screen.flush()
    seq = int(json.loads(piece)["gap_to"]) if isinstance(piece, Raw) else _last_seq(piece)
    call.server.send(put(consumer_path(call.args.topic, call.args.consumer), {"seq": seq}))


def _last_seq(lines: bytes) -> int:
    return _seq_of(lines.rstrip(b"\n").rpartition(b"\n")[2])


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


def _last(call: Call, reader: Reader) -> Iterator[Piece]:
    """Yield the last N records, and the gaps between them. Look further back where records do not match."""
    state = call.server.json(get(topic_path(call.args.topic, touch=False)))
    head, wanted = state["head_seq"], call.args.last
    reader.position = Position(head, state["epoch"])
    lowest, span = max(state["earliest_seq"] - 1, 0), wanted
    while wanted:
        start, records = max(head - span, lowest), 0
        kept: deque[Piece] = deque(maxlen=2 * wanted)
        for piece in reader.scan(Position(start)):
            lines: list[Piece] = [piece] if isinstance(piece, Raw) else [*piece.splitlines(keepends=True)]
            kept += lines
            records += 0 if isinstance(piece, Raw) else len(lines)
        if records >= wanted or start <= lowest:
            skip = sum(isinstance(line, bytes) for line in kept) - wanted
            for line in kept:
                if isinstance(line, bytes) and skip > 0:
                    skip -= 1
                else:
                    yield line
            return
        span *= WIDEN


def within(pieces: Iterable[Piece], first: int, last: int | None) -> Iterator[Piece]:
    """Yield the records from `first` to `last`, and the gaps that reach into this range.

    A topic that was created again starts over at seq 1, so everything of the new epoch is yielded.
    """
    for piece in pieces:
        if isinstance(piece, Raw):
            gap = msgspec.json.decode(piece, type=Tombstone)
            first = 0 if gap.reason == "recreated" else first
            if gap.gap_to >= first:
                yield piece
        elif first <= 1 and last is None:
            yield piece
        else:
            for line in piece.splitlines(keepends=True):
                if first <= (seq := _seq_of(line)) and (last is None or seq <= last):
                    yield line


class Reader:
    """Reads the topic of a command. `position` is where the last read ended."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.position = Position(0)

    def scan(self, start: Position | None = None) -> Iterator[Piece]:
        """Yield the pieces of a bulk read, from where the options say or from `start`.

        The read continues after a broken connection.
        """
        server, attempts = self._call.server, 0
        while True:
            lines, began, last = ScanLines(), False, None
            try:
                for chunk in server.stream(_request(self._call.args, start)):
                    began = True
                    for piece in lines.feed(chunk):
                        if isinstance(piece, End):
                            self.position = Position(piece.next_from_seq, piece.epoch)
                            return
                        last = piece
                        yield piece
                raise server.unreachable("the answer was cut off")
            except Unreachable:
                attempts = attempts + 1 if last is None else 0
                if not began or attempts >= MAX_ATTEMPTS:
                    raise
            if last is not None:
                start = Position(_last_seq(last) if isinstance(last, bytes) else int(json.loads(last)["gap_to"]))
            time.sleep(PAUSE_S)

    def follow(self) -> Iterator[Piece]:
        """Yield new records, up to `--to` or until interrupted. Continue after broken connections and restarts."""
        args, lost_contact = self._call.args, False
        self._call.screen.flush()
        while args.last_seq is None or self.position.seq < args.last_seq:
            try:
                answer = self._call.server.send(_poll(args, self.position))
            except TopicsError as error:
                if not error.retryable:
                    raise
                if not lost_contact:
                    self._call.screen.warn(f"{error}; trying again")
                    lost_contact = True
                time.sleep(PAUSE_S)
                continue
            lost_contact = False
            page = members(answer)
            if page.get("tombstone", b"null") != b"null":
                yield Raw(page["tombstone"])
            if records := elements(page["records"]):
                yield b"\n".join(records) + b"\n"
            self._call.screen.flush()
            self.position = Position(int(page["next_from_seq"]), int(page["epoch"]))


def _poll(args: Args, position: Position) -> Request:
    """Return the request that waits for records after a position."""
    at = given(from_seq=position.seq, epoch=position.epoch)
    body = {**_fields(args), **at, "limit": PAGE_RECORDS, "wait_ms": WAIT_MS}
    return post(topic_path(args.topic, "diff"), body, wait_ms=WAIT_MS)


def _seq_of(line: bytes) -> int:
    return int(json.loads(line)["$seq"])


def _show(call: Call, pieces: Iterable[Piece], done: Callable[[Piece], None]) -> None:
    """Print pieces, up to `--limit` records. `done` is called with what is printed: a piece, or a line at the limit."""
    args, left, print_line = call.args, call.args.limit, _printer(call)
    # Whole blocks are passed on if no option needs single lines: a pipe then gets millions of records a second.
    takes_blocks = not (call.screen.is_human or args.data or args.format or left is not None)
    for piece in pieces:
        if isinstance(piece, Raw):
            _show_gap(call, bytes(piece))
        elif takes_blocks:
            sys.stdout.buffer.write(piece)
        else:
            for line in piece.splitlines():
                print_line(line)
                left = None if left is None else left - 1
                if left == 0:
                    done(line)
                    return
        done(piece)


def _show_gap(call: Call, tombstone: bytes) -> None:
    if call.screen.is_human:
        print_gap(call.screen, tombstone)
    elif call.args.data or call.args.format:
        call.screen.warn(f"records were lost: {tombstone.decode()}")
    else:
        call.screen.json(b'{"tombstone":' + tombstone + b"}")


def _printer(call: Call, topic: bytes = b"") -> Callable[[bytes], object]:
    """Return what prints a record: its data, by a template, for a person, or as JSON. `topic` is JSON text."""
    write, start = sys.stdout.buffer.write, b'{"topic":' + topic + b"," if topic else b"{"
    if getattr(call.args, "data", False):
        return lambda line: write(members(line)["data"] + b"\n")
    if call.args.format is not None:
        return lambda line: call.args.format(call.screen, start + line[1:])
    if call.screen.is_human:
        return partial(print_record, call.screen, topic=json.loads(topic or b'""'))
    return lambda line: write(start + line[1:] + b"\n")


# --- get


def _one(args: Args) -> Request:
    return post(topic_path(args.topic, "diff"), {"from_seq": args.seq - 1, "limit": 1, "include_tags": True})


@Command(
    "get",
    options=(
        TOPIC,
        option("SEQ", "its seq", type=parse_positive),
        one_of(option("--data", "print only its data"), FORMAT),
    ),
    request=_one,
    details="The exit status is 3 if there is none: the message says why.",
    examples="  topics get orders 42\n  topics get orders 42 --data | jq .sku\n",
)
def get_record(call: Call) -> None:
    seq = call.args.seq
    page = members(call.server.send(call.request(call.args)))
    records = [record for record in elements(page["records"]) if _seq_of(record) == seq]
    if not records:
        gap = json.loads(page.get("tombstone", b"null"))
        if gap is not None and gap["gap_from"] <= seq <= gap["gap_to"]:
            why = f"it was lost with {gap['gap_from']} to {gap['gap_to']} ({gap['reason']})"
        else:
            head = int(page["head_seq"])
            why = f"it was deleted; the head is {head:,}" if seq <= head else f"the head is {head:,}"
        raise Failure(f"{call.args.topic} has no record {seq:,}: {why}", status=EXIT_NOT_FOUND)
    _printer(call)(records[0])


# --- watch

HEARTBEAT_S = 15.0


def _open(args: Args, cursor: str | None = None) -> Request:
    options = given(tail=None if args.from_start else True, filter=filter_of(args.tag, args.where, args.grep))
    body = {"topics": dict.fromkeys(args.topics, options), "include_tags": True}
    return post("/v0/watch", {**body, **given(cursor=cursor, node=args.skip_node)}, safe=False)


@Command(
    "watch",
    options=(
        option(
            "TOPIC…", "topics, or patterns such as 'chat-*', also for future topics", dest="topics", completes="topics"
        ),
        option("--from-start", "print the records that are there already, too"),
        *FILTERS,
        option("--skip-node NODE", "leave out records of this writer", action="append"),
        option("-n --limit N", "stop after N records"),
        FORMAT,
    ),
    request=_open,
    details="Prints new records of all topics and patterns, and gaps where records were lost, until interrupted.",
    examples="  topics watch 'chat-*' orders\n  topics watch orders --from-start --tag 'eu:*'\n",
)
def watch(call: Call) -> None:
    left, cursor, lost_contact = call.args.limit, None, False
    while True:
        try:
            for event in call.server.events(_open(call.args, cursor), timeout_s=3 * HEARTBEAT_S):
                if not event.name:
                    continue
                lost_contact, cursor = False, event.id or cursor
                left = _print_event(call, event.name, event.data, left)
                call.screen.flush()
                if left == 0:
                    return
        except TopicsError as error:
            known = cursor is not None or lost_contact
            passing = error.retryable or error.code is Code.NOT_FOUND
            if not known or not passing:
                raise
            if not lost_contact:
                call.screen.warn(f"{error}; trying again")
            lost_contact = True
        time.sleep(PAUSE_S)


def _print_event(call: Call, name: str, data: bytes, left: int | None) -> int | None:
    """Print one event and return how many records are left to print."""
    if name == "record":
        frame = members(data)
        print_line, records = _printer(call, frame["topic"]), elements(frame["records"])
        for record in records[:left]:
            print_line(record)
        return None if left is None else max(left - len(records), 0)
    fields = json.loads(data)
    if name == "tombstone":
        if call.screen.is_human:
            print_gap(call.screen, fields, topic=fields["topic"])
        else:
            call.screen.json({"topic": fields.pop("topic"), "tombstone": fields})
    elif name == "topic-deleted":
        topic = fields.pop("topic")
        text = call.screen.paint(f"  ────  {topic} was removed  ────", "yellow")
        call.screen.result({"topic": topic, "topic_deleted": fields}, text)
    elif name == "error":
        text = f"the server reports {fields.get('code')}: {fields.get('error')}"
        if fields.get("code") not in (429, 503, 408):
            raise Failure(text)
        call.screen.warn(text)
    return left


def register(subparsers: Subparsers) -> None:
    read.register(subparsers)
    get_record.register(subparsers)
    watch.register(subparsers)
