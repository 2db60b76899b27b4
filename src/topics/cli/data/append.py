"""`topics append`: append records from arguments, or from a pipe in batches."""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Raw

from topics.cli.command import Args, Call, Command
from topics.cli.connect import post
from topics.cli.options import one_of, option
from topics.cli.output.failures import Failure, usage
from topics.cli.output.screen import confirm, json_text
from topics.cli.output.units import parse_count, rate
from topics.client.call import Request, given, topic_path
from topics.client.connection import Retries
from topics.client.errors import TopicsError, Unreachable
from topics.errors import Code
from topics.plurals import counted

MAX_BATCH = 10_000  # the server's default limit for one write
PIPE_BATCH = 2000
WRITTEN = ("data", "tag", "node", "meta", "priority", "delay_ms", "deliver_at", "key", "unique")


def _request(args: Args) -> Request:
    """Return the request for the arguments, or for the first lines of the pipe."""
    if _is_piped(args):
        for request in _requests(args):
            return request
        raise usage("standard input has no lines to append")
    if "-" in args.data:
        raise usage("- reads the records from a pipe, so it must be the only DATA")
    records = [_record(text, args) for text in args.data]
    if len(records) > MAX_BATCH:
        raise usage(f"{len(records)} records are too many arguments", "pass them as JSON lines on standard input: -")
    return write(args, b",".join(records), key=args.key)


def _is_piped(args: Args) -> bool:
    """Return whether the records come from standard input. Raise `Failure` if there is neither DATA nor a pipe."""
    if not args.data and sys.stdin.isatty():
        raise usage("there is nothing to append", "pass values, such as '{\"a\": 1}', or - to type JSON lines")
    return args.data in ([], ["-"])


def _record(text: str, args: Args) -> bytes:
    """Return an encoded record. JSON is sent as it was typed: the server keeps `1.0` and the order of members."""
    encoded = json_text(text) if args.text else json_value(text)
    common = _common(args)
    return as_record(encoded, common) if args.records else encode({"data": Raw(encoded), **common})


def json_value(text: str) -> bytes:
    """Return the text of a JSON value. Text that does not look like JSON becomes a string."""
    try:
        json.loads(text, parse_constant=_no_constant)
        return text.encode()
    except ValueError as error:
        if text[:1] in ("{", "[", '"'):
            hint = "correct it, or pass --text to append it as a string"
            raise usage(f"{text!r} is not valid JSON: {error}", hint) from None
        return json_text(text)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(text: str) -> Raw:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return Raw(text.encode())


RECORD_OPTIONS = (
    option("--tag TAG", "tag of the records"),
    option("--meta JSON", "an object with metadata", type=_object),
    option("--priority 0-9", "queues: higher priorities come first", type=parse_count),
    option("--delay DURATION", "queues: not before this time has passed"),
    option("--record-key KEY", "queues deliver jobs of one key in order, one at a time"),
)


@Command(
    "append",
    options=(
        option("TOPIC", "the topic; the first append creates it", completes="topics"),
        option(
            "[DATA…]", "JSON values; other text becomes a string; without DATA, or with -, read JSON lines from a pipe",
            default=[],
        ),
        option("--text", "take every DATA as a string, also if it is JSON"),
        option("--records", "every value is a whole record, with data, tag, node and meta, as `topics read` prints it"),
        option("--node NODE", "name of the writer"),
        option("--key KEY", "idempotency key: the same key is stored once"),
        *RECORD_OPTIONS,
        option("--unique KEY", "queues: append nothing while a job with this key is pending"),
        option("--unique-for DURATION", "queues: or for this time"),
        one_of(
            option("--create", "create a topic that does not exist without asking; asked only on a terminal"),
            option("--no-create", "fail if the topic does not exist"),
        ),
        option("--batch N", "most records per request [%(default)s]", default=PIPE_BATCH),
    ),
    request=_request,
    examples="""\
  topics append orders '{"sku": "V60", "qty": 2}' --tag order-7
  topics append notes hello 'two words' 42
  cat events.jsonl | topics append events -
  topics read orders | topics append orders-copy - --records
""",
)  # fmt: skip
def append(call: Call) -> None:
    if _is_piped(call.args):
        if sys.stdin.isatty():
            call.screen.note("type one JSON value per line; Ctrl-D ends the input")
        _append_lines(call)
        return
    answer = _ask_before_creating(call)
    _note_files(call)
    seqs = f"seq {answer['first_seq']}"
    if answer["count"] > 1:
        seqs = f"seqs {answer['first_seq']} to {answer['last_seq']}"
    kinds = {"created": "new topic", "deduped": "written before with this key"}
    notes = [text for name, text in kinds.items() if answer[name]]
    text = f"appended {counted(answer['count'], 'record')} to {answer['topic']}: {seqs}"
    call.screen.result(answer, text + (f" ({', '.join(notes)})" if notes else ""))


def _ask_before_creating(call: Call) -> Any:
    """Send the request. On a terminal, ask before it creates the topic: the name may be misspelt."""
    args = call.args
    if args.create or args.no_create or not sys.stdin.isatty():
        return call.ask()
    args.no_create = True
    try:
        return call.ask()
    except TopicsError as error:
        if error.code is not Code.TOPIC_NOT_FOUND:
            raise
        near = (error.detail or {}).get("near")
        meant = f" (did you mean {near[0]}?)" if near else ""
        confirm(f"topic {args.topic} does not exist{meant}; create it?")
    args.no_create, args.create = False, True
    return call.ask()


def _note_files(call: Call) -> None:
    """Note each DATA that was appended as text and is the name of a file, whose lines may have been meant."""
    if call.args.text or call.args.records:
        return
    for text in call.args.data:
        if os.path.isfile(text) and json_value(text)[:1] == b'"':
            lines = f"topics append {shlex.quote(call.args.topic)} - < {shlex.quote(text)}"
            call.screen.note(f"appended the text {text!r}; to append the lines of the file: {lines}", "yellow")


# --- requests


def write(args: Args, records: bytes, *, key: str | None) -> Request:
    """Return one write of encoded records, separated by commas, with the options that hold for all of them."""
    create = False if args.no_create else True if args.create else None
    fields = given(node=args.node, idempotency_key=key or uuid.uuid4().hex, create=create)
    body = b'{"records":[' + records + b"]," + json_text(fields)[1:]
    return post(topic_path(args.topic, return_seqs=False), body)


def defaults(args: Args) -> dict[str, Any]:
    """Return the fields that `RECORD_OPTIONS` give to every record."""
    return given(tag=args.tag, meta=args.meta, priority=args.priority, delay_ms=args.delay, key=args.record_key)


def _common(args: Args) -> dict[str, Any]:
    unique = None if args.unique is None else {"key": args.unique, "for": args.unique_for or "pending"}
    return {**defaults(args), **given(unique=unique)}


def as_record(text: bytes, common: dict[str, Any]) -> bytes:
    """Return a record to write for a record as the API takes it or as a reader prints it. Values keep their text."""
    from topics.model import surrogates  # which imports numpy

    try:
        found = surrogates.members(text)
    except msgspec.ValidationError:
        found = {}
    if "data" not in found:
        raise usage("with --records, every value must be an object with data", "leave out --records to append values")
    record = {name: found[name] for name in WRITTEN if name in found}
    for read, written in (("$tag", "tag"), ("$node", "node"), ("$key", "key")):
        if read in found:
            record[written] = found[read]
    return encode({**common, **record})


def encode(fields: dict[str, Any]) -> bytes:
    texts = ((name, bytes(value) if isinstance(value, Raw) else json_text(value)) for name, value in fields.items())
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), text) for name, text in texts)


# --- JSON lines from a pipe

READ_BYTES = 1 << 20
PATIENT = Retries(math.inf, for_s=60.0)

_decode_lines = msgspec.json.Decoder(Raw).decode_lines
_encode = msgspec.json.Encoder().encode


def _append_lines(call: Call) -> None:
    """Append the lines of standard input in batches, and print how many there were.

    A batch is what the pipe holds when the batch before it was answered, up to `--batch` records: a slow writer sees
    each line appended at once. Every batch has an idempotency key, so that it is sent again without harm if the server
    restarts meanwhile. With `--key`, batches are always full, so that the same input makes the same batches and the
    same keys.
    """
    records = batches = first_seq = last_seq = 0
    began, shows = time.monotonic(), sys.stderr.isatty()
    try:
        for request in _requests(call.args):
            answer = json.loads(call.server.send(request, PATIENT))
            first_seq, last_seq = first_seq or answer["first_seq"], answer["last_seq"]
            records, batches = records + answer["count"], batches + 1
            if shows:
                print(f"\r{counted(records, 'record')}\x1b[K", end="\r", file=sys.stderr, flush=True)
    except (Failure, Unreachable) as failure:
        failure.args = (f"{failure}; {counted(records, 'record')} of the input were appended before",)
        raise
    answer = {
        "topic": call.args.topic, "count": records, "first_seq": first_seq, "last_seq": last_seq, "batches": batches,
    }  # fmt: skip
    seqs = f"seqs {first_seq} to {last_seq}, {rate(records / max(time.monotonic() - began, 1e-6))}"
    done = f"appended {counted(records, 'record')} to {call.args.topic}: {seqs}"
    call.screen.result(answer, done if records else "the input was empty; nothing was appended")


def _requests(args: Args) -> Iterator[Request]:
    """Yield the writes for the lines of standard input."""
    common, base = _common(args), args.key or os.urandom(8).hex()
    for number, batch in enumerate(_batches(args), start=1):
        if args.records:
            records: list[Any] = [Raw(as_record(bytes(value), common)) for value in batch]
        else:
            records = [{"data": value, **common} for value in batch]
        yield write(args, _encode(records)[1:-1], key=f"{base}/{number}")


def _batches(args: Args) -> Iterator[list[Any]]:
    """Yield batches of values. With `--key`, all but the last are full, however the input arrives."""
    held: list[Any] = []
    for values in _values(text=args.text):
        held += values
        whole = len(held) if args.key is None else len(held) - len(held) % args.batch
        for at in range(0, whole, args.batch):
            yield held[at : at + args.batch]
        del held[:whole]
    if held:
        yield held


def _values(*, text: bool) -> Iterator[list[Any]]:
    """Yield the values of the lines that have arrived. Raise `Failure` with the number of a line that is not JSON."""
    before = 0
    for block in _whole_lines(sys.stdin.fileno()):
        try:
            yield [line.decode(errors="replace") for line in block.splitlines()] if text else _decode_lines(block)
        except msgspec.DecodeError:
            raise _bad_line(block, before) from None
        before += block.count(b"\n")


def _whole_lines(descriptor: int) -> Iterator[bytes]:
    """Yield the lines that have arrived. The last line may lack its line break."""
    held = bytearray()
    while part := os.read(descriptor, READ_BYTES):
        held += part
        if cut := held.rfind(b"\n", len(held) - len(part)) + 1:
            yield bytes(held[:cut])
            del held[:cut]
    if held:
        yield bytes(held)


def _bad_line(block: bytes, before: int) -> Failure:
    for number, line in enumerate(block.splitlines(), before + 1):
        if line.strip():
            try:
                _decode_lines(line)
            except msgspec.DecodeError as error:
                return usage(
                    f"line {number} of the input is not JSON ({error})",
                    f"correct it, then continue with `tail -n +{before + 1}`; --text appends lines as strings",
                )
    return usage("the input is not JSON lines", "put every JSON value on one line")


register = append.register
