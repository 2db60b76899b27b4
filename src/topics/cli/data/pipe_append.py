"""`topics append TOPIC -`: JSON lines from a pipe, in batches.

A batch is what the pipe holds when the batch before it is sent, up to `--batch` records: a slow writer sees each line
appended at once, and a fast one gets full batches. Every batch has an idempotency key, so that it is sent again without
harm if the server restarts meanwhile. With `--key`, batches are always full, so that the same input makes the same
batches and the same keys.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import msgspec
from msgspec import Raw, Struct

from topics.cli.command import Args, Call
from topics.cli.data.append_request import as_record, defaults, write
from topics.cli.output.failures import EXIT_DONE, Failure, usage
from topics.cli.output.units import rate
from topics.client.call import Request
from topics.client.connection import Retries
from topics.client.errors import Unreachable
from topics.plurals import counted

READ_BYTES = 1 << 20
BATCH_BYTES = 8 << 20  # of text, well below the server's limit for a body
PATIENT = Retries(math.inf, for_s=60.0)
SHOW_EVERY_S = 0.2

_decode_lines = msgspec.json.Decoder(Raw).decode_lines
_encode = msgspec.json.Encoder().encode


class Line(Struct, omit_defaults=True):
    """A record whose data is a line of the input."""

    data: Raw
    tag: str | None = None
    meta: Raw | None = None
    priority: int | None = None
    delay_ms: int | None = None


class Progress:
    """What was appended so far, shown on standard error if that is a terminal."""

    def __init__(self) -> None:
        self.records = self.batches = 0
        self.first_seq = self.last_seq = 0
        self._began = self._shown_s = time.monotonic()
        self._shows = sys.stderr.isatty()

    @property
    def per_second(self) -> float:
        return self.records / max(time.monotonic() - self._began, 1e-6)

    def note(self, answer: dict[str, Any]) -> None:
        self.records += answer["count"]
        self.batches += 1
        self.first_seq = self.first_seq or answer["first_seq"]
        self.last_seq = answer["last_seq"]
        if self._shows and time.monotonic() - self._shown_s > SHOW_EVERY_S:
            self._shown_s = time.monotonic()
            print(
                f"\r\x1b[K{counted(self.records, 'record')}, {rate(self.per_second)}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def clear(self) -> None:
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class Sender:
    """Sends one batch at a time, on a thread of its own, so that the next one is read and encoded meanwhile."""

    def __init__(self, call: Call, pool: ThreadPoolExecutor, progress: Progress) -> None:
        self._server, self._pool, self._progress = call.server, pool, progress
        self._sent: Future[bytes] | None = None

    def send(self, request: Request) -> None:
        """Send a batch after the answer to the previous one. If that one failed, raise its error and send nothing."""
        self.finish()
        self._sent = self._pool.submit(self._server.send, request, PATIENT)

    def finish(self) -> None:
        """Wait for the answer to the last batch."""
        if self._sent is not None:
            sent, self._sent = self._sent, None
            self._progress.note(json.loads(sent.result()))


def run(call: Call) -> int:
    """Append the lines of standard input and print how many there were."""
    progress = Progress()
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            sender = Sender(call, pool, progress)
            for request in _requests(call.args, sender.finish):
                sender.send(request)
            sender.finish()
    except (Failure, Unreachable) as failure:
        failure.args = (f"{failure}; {counted(progress.records, 'record')} of the input were appended before",)
        raise
    finally:
        progress.clear()
    answer = {
        "topic": call.args.topic, "count": progress.records, "first_seq": progress.first_seq,
        "last_seq": progress.last_seq, "batches": progress.batches,
    }  # fmt: skip
    seqs = f"seqs {progress.first_seq} to {progress.last_seq}, {rate(progress.per_second)}"
    done = f"appended {counted(progress.records, 'record')} to {call.args.topic}: {seqs}"
    call.screen.result(answer, done if progress.records else "the input was empty; nothing was appended")
    return EXIT_DONE


def first_request(args: Args) -> Request:
    """Return the request of the first batch, for `--curl`."""
    for request in _requests(args, lambda: None):
        return request
    raise usage("standard input has no lines to append")


def _requests(args: Args, before_wait: Callable[[], None]) -> Iterator[Request]:
    """Yield the writes for the lines of standard input. `before_wait` is called when the pipe is empty."""
    make = _record_maker(args)
    base, number = args.key or os.urandom(8).hex(), 0
    for batch in _batches(args, before_wait, exact=args.key is not None):
        number += 1
        yield write(args, _encode([make(raw) for raw in batch])[1:-1], key=f"{base}/{number}")


def _record_maker(args: Args) -> Any:
    if args.records:
        common = defaults(args)
        return lambda raw: Raw(as_record(bytes(raw), common))
    if args.text:
        return lambda raw: {"data": raw, **defaults(args)}
    extra = defaults(args)
    return (lambda raw: Line(raw, **extra)) if extra else Line


def _batches(args: Args, before_wait: Callable[[], None], *, exact: bool) -> Iterator[list[Any]]:
    """Yield batches of values. With `exact`, all but the last are full, however the input arrives."""
    held: list[Any] = []
    for values in _values(before_wait, text=args.text):
        held += values
        rest = iter(held)
        whole = len(held) - len(held) % args.batch if exact else len(held)
        for _ in range(0, whole, args.batch):
            yield list(islice(rest, min(args.batch, whole)))
        held = list(rest)
    if held:
        yield held


def _values(before_wait: Callable[[], None], *, text: bool) -> Iterator[list[Any]]:
    """Yield the values of the lines that have arrived. Raise `Failure` with the number of a line that is not JSON."""
    before = 0
    for block in _whole_lines(sys.stdin.fileno(), before_wait):
        if text:
            values: list[Any] = [line.decode(errors="replace") for line in block.splitlines()]
        else:
            try:
                values = _decode_lines(block)
            except msgspec.DecodeError:
                raise _bad_line(block, before) from None
        before += block.count(b"\n")
        yield values


def _whole_lines(descriptor: int, before_wait: Callable[[], None]) -> Iterator[bytes]:
    """Yield the lines that the pipe holds now, and wait if it holds none. The last line may lack its line break."""
    held, ended = b"", False
    while not ended:
        parts, length = [held], len(held)
        if not _is_ready(descriptor):
            before_wait()
        while not ended and (length == len(held) or (length < BATCH_BYTES and _is_ready(descriptor))):
            part = os.read(descriptor, READ_BYTES)
            ended = not part
            parts.append(part)
            length += len(part)
        block = b"".join(parts)
        cut = len(block) if ended else block.rfind(b"\n") + 1
        held = block[cut:]
        if cut and (lines := block[:cut]).strip():
            yield lines


def _is_ready(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


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
