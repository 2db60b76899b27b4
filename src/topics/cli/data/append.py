"""`topics append`: append records from arguments, or from a pipe in batches."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys

from msgspec import Raw

from topics.cli.command import Args, Call, Command, Curl, registering, topic_argument
from topics.cli.data.append_request import as_record, defaults, encode, write
from topics.cli.output.failures import EXIT_DONE, usage
from topics.cli.output.screen import json_text
from topics.cli.output.units import parse_count, parse_duration, parse_positive
from topics.client.call import Request
from topics.plurals import counted

MAX_BATCH = 10_000  # the server's default limit for one write
PIPE_BATCH = 2000


def _arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, help="the topic; the first append creates it")
    parser.add_argument(
        "data",
        nargs="*",
        default=[],
        metavar="DATA",
        help="JSON values; other text becomes a string; without DATA, or with -, read JSON lines from a pipe",
    )
    parser.add_argument("--text", action="store_true", help="take every DATA as a string, also if it is JSON")
    parser.add_argument(
        "--records", action="store_true",
        help="every value is a whole record, with data, tag, node and meta, as `topics read` prints it",
    )  # fmt: skip
    parser.add_argument("--tag", metavar="TAG", help="tag of the records")
    parser.add_argument("--node", metavar="NODE", help="name of the writer")
    parser.add_argument("--meta", metavar="JSON", type=_object, help="an object with metadata")
    parser.add_argument("--key", metavar="KEY", help="idempotency key: the same key is stored once")
    parser.add_argument("--priority", metavar="0-9", type=parse_count, help="queues: higher priorities come first")
    parser.add_argument(
        "--delay", metavar="DURATION", type=parse_duration, help="queues: not before this time has passed"
    )
    parser.add_argument("--no-create", action="store_true", help="fail if the topic does not exist")
    parser.add_argument(
        "--batch", metavar="N", type=parse_positive, default=PIPE_BATCH, help="most records per request [%(default)s]"
    )


def _request(args: Args) -> Request:
    """Return the request for the arguments, or for the first lines of the pipe."""
    if _is_piped(args):
        from topics.cli.data import pipe_append

        return pipe_append.first_request(args)
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
    encoded = json_text(text) if args.text else _value(text)
    return as_record(encoded, defaults(args)) if args.records else encode({"data": Raw(encoded), **defaults(args)})


def _value(text: str) -> bytes:
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
    """Return the text of a JSON object."""
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return Raw(text.encode())


def _run(call: Call) -> int:
    if _is_piped(call.args):
        from topics.cli.data import pipe_append

        if sys.stdin.isatty():
            call.screen.note("type one JSON value per line; Ctrl-D ends the input")
        return pipe_append.run(call)
    answer = call.server.json(_request(call.args))
    _note_files(call)
    seqs = f"seq {answer['first_seq']}"
    if answer["count"] > 1:
        seqs = f"seqs {answer['first_seq']} to {answer['last_seq']}"
    notes = [
        text for name, text in (("created", "new topic"), ("deduped", "written before with this key")) if answer[name]
    ]
    text = f"appended {counted(answer['count'], 'record')} to {answer['topic']}: {seqs}"
    call.screen.result(answer, text + (f" ({', '.join(notes)})" if notes else ""))
    return EXIT_DONE


def _note_files(call: Call) -> None:
    """Note each DATA that was appended as text and is the name of a file, whose lines may have been meant."""
    if call.args.text or call.args.records:
        return
    for text in call.args.data:
        if os.path.isfile(text) and _value(text)[:1] == b'"':
            lines = f"topics append {shlex.quote(call.args.topic)} - < {shlex.quote(text)}"
            call.screen.note(f"appended the text {text!r}; to append the lines of the file: {lines}", "yellow")


def _curl_notes(args: Args, curl: Curl) -> list[str]:
    notes = ["The request has an idempotency_key: if you run it twice, the records are stored once."]
    if _is_piped(args):
        notes.append("It has the first batch of the lines; the command sends one request for each batch.")
    return notes


APPEND = Command(
    name="append",
    arguments=_arguments,
    request=_request,
    run=_run,
    curl_notes=_curl_notes,
    examples="""\
  topics append orders '{"sku": "V60", "qty": 2}' --tag order-7
  topics append notes hello 'two words' 42
  cat events.jsonl | topics append events -
  topics read orders | topics append orders-copy - --records
""",
)
register = registering(APPEND)
