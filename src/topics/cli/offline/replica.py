"""`topics replica`, and `topics restore` from a replica: work on a replica without a server."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from topics.cli.offline.guarded import Execute, Meter, Outcome, aside_of, guarded
from topics.cli.options import Row, add_group, add_parser, option
from topics.cli.output.screen import Cell, Screen, Styled
from topics.cli.output.units import duration, size
from topics.cli.tree import Subparsers
from topics.plurals import counted
from topics.storage.replica.objects import shown_time

if TYPE_CHECKING:
    from topics.storage.datadir import DataDir
    from topics.storage.replica.history import History
    from topics.storage.replica.objects import Announced
    from topics.storage.replica.upkeep import Status


PROMOTE_POLL_S = 0.2
STALE_MS = 60_000  # a server that was not seen for longer is promoted only by its name
ANSWER_LIMIT_S = 2.0  # of the writer, for `status`

COLUMNS: dict[str, Callable[[Any], Cell]] = {
    "object": lambda row: str(row["object"]),
    "kind": lambda row: Styled(row["kind"], {"term": "yellow", "checkpoint": "green"}.get(row["kind"], "")),
    "term": lambda row: str(row["term"]),
    "time": lambda row: row["time"],
    "size": lambda row: size(row["bytes"]),
    "host": lambda row: row["host"],
}


def register(subparsers: Subparsers) -> None:
    details = "Credentials come from the environment. A running server is not asked."
    examples = "  topics replica status s3://bucket/prefix\n  topics restore s3://bucket/prefix DIR --ago 10m\n"
    verbs = add_group(add_parser(subparsers, "replica", details=details, examples=examples))
    _add(verbs, "ls", _ls, "list the last objects", option("-n --limit N", "how many [20]", default=20))
    _add(verbs, "status", _status, "print lag, size, requests per hour and the oldest moment that can be restored")
    _add(verbs, "verify", _verify, "read all objects and files, and compare them with their checksums")
    keep = option("--keep DURATION", "how long every moment can be restored [7d]", default=7 * 86_400_000)
    _add(verbs, "prune", _prune, "remove what no restore to a later moment needs", keep)
    _add(
        verbs, "promote", _promote, "let a standby take over: the writer stops in order, so nothing is lost",
        option("--to NAME", "the standby, if there are several"),
        option("--now", "do not wait for the writer: what it has not uploaded is lost, and reported"),
        option("--timeout DURATION", "how long to wait for the standby [60s]", default=60_000),
    )  # fmt: skip


def _add(verbs: Subparsers, name: str, execute: Execute, help: str, *rows: Row) -> None:
    url = option("[URL]", "of the replica [TOPICS_REPLICA]", env="TOPICS_REPLICA")
    parser = add_parser(verbs, name, help, url, option("--json", "print JSON, also on a terminal"), *rows)
    parser.set_defaults(execute=lambda args: guarded(execute, args))


def open_history(url: str | None, *, whole: bool) -> History:
    """Return the replica at the URL. Raise `ReplicaError` if there is none."""
    from topics.setting_kinds import parse_bucket_url
    from topics.storage.replica.bucket import BucketError, open_bucket
    from topics.storage.replica.history import History

    if url is None:
        raise BucketError("no replica is named; give its URL, or set TOPICS_REPLICA")
    try:
        parse_bucket_url(url)
    except ValueError as error:
        raise BucketError(str(error)) from None
    history = History.open(open_bucket(url), whole=whole)
    if history is None:
        raise BucketError(f"{url} is empty; correct the URL, or start a server with TOPICS_REPLICA={url}")
    return history


# --- commands


def _ls(args: argparse.Namespace) -> None:
    history = open_history(args.url, whole=True)
    numbers = sorted(history.log)[-args.limit :] if args.limit > 0 else []
    rows = []
    for number in numbers:
        head = history.read(number).head
        rows.append(
            {
                "object": number, "kind": head.kind, "term": head.term, "time": shown_time(head.at_ms),
                "bytes": history.log[number].size_bytes, "host": head.host, "log": list(head.upto),
            }
        )  # fmt: skip
    Screen(as_json=args.json).rows(rows, COLUMNS)


def _status(args: argparse.Namespace) -> Outcome:
    from topics.storage.replica import upkeep

    now_ms = time.time_ns() // 1_000_000
    found = upkeep.status(open_history(args.url, whole=True), now_ms=now_ms)
    _ask_writer(found)
    writer = f"{found.host} ({found.address})" if found.host else "none yet"
    last = (
        "never" if not found.last_ms else f"{duration(max(now_ms - found.last_ms, 0))} ago, object {found.last_object}"
    )
    fields = [
        ("replica", f"{args.url} ({found.replica})"),
        ("writer", f"{writer}, term {found.term}" + (", stopped in order" if found.clean else "")),
        ("last upload", last),
        ("lag", "unknown" if found.lag_ms is None else duration(found.lag_ms)),
        *(("failure", failure) for failure in found.failures),
        ("checkpoint", f"object {found.checkpoint}" if found.checkpoint else "none yet"),
        ("restorable from", shown_time(found.oldest_ms) if found.oldest_ms else "nothing yet"),
        ("stored", f"{counted(found.objects, 'object')}, {counted(found.files, 'file')}, {size(found.bytes)}"),
        ("last hour", f"{counted(found.objects_last_hour, 'upload')} of the log"),
        *(("standby" if one.takes_over else "read replica", _shown_standby(one, now_ms)) for one in found.standbys),
    ]
    return Outcome(found, [f"{name.ljust(15)}  {text}" for name, text in fields])


def _ask_writer(found: Status) -> None:
    """Add what only the writer knows, if it answers."""
    from topics.client import Topics, TopicsError

    if not found.address:
        return
    try:
        with Topics(found.address, timeout_s=ANSWER_LIMIT_S, retries=0) as writer:
            ready = writer.ready()
    except (TopicsError, ValueError) as error:
        found.failures = [f"the writer does not serve: {error}"]
        return
    found.lag_ms = ready.replica_lag_ms if isinstance(ready.replica_lag_ms, int) else None
    found.failures = ready.warnings or []


def _shown_standby(one: Announced, now_ms: int) -> str:
    seen = f"seen {duration(max(now_ms - one.at_ms, 0))} ago"
    return f"{one.name} ({one.address}), object {one.object}, {duration(one.lag_ms)} behind, {seen}"


def _promote(args: argparse.Namespace) -> Outcome:
    from topics.storage.replica import objects, upkeep
    from topics.storage.replica.bucket import BucketError

    history = open_history(args.url, whole=False)
    end, bucket = history.end(), history.bucket
    recent_ms = time.time_ns() // 1_000_000 - STALE_MS
    found = [one for one in upkeep.standbys(bucket) if args.to == one.name or (not args.to and one.at_ms > recent_ms)]
    found = [one for one in found if one.takes_over] or found
    if len(found) != 1:
        names, next_step = ", ".join(one.name for one in found), "name one with --to"
        if not found:
            names, next_step = "no such server follows", "start one with `topics serve --standby`"
        raise BucketError(f"{counted(len(found), 'standby', 'standbys')} could take over ({names}); {next_step}")
    promote = objects.Promote(found[0].name, end.term, args.now)
    bucket.put(objects.PROMOTE, msgspec.json.encode(promote))
    deadline = time.monotonic() + args.timeout / 1000
    try:
        while (now := history.end()).base <= end.number or now.term == end.term:
            if time.monotonic() > deadline:
                raise BucketError(f"{promote.standby} has not taken over; see its log, or use --now")
            time.sleep(PROMOTE_POLL_S)
            history.refresh()
    finally:
        bucket.delete([objects.PROMOTE])
    return Outcome(now, [f"{now.host} ({found[0].address}) is the writer, term {now.term}"])


def _verify(args: argparse.Namespace) -> Outcome:
    from topics.storage.replica import upkeep

    with Meter("checked") as meter:
        found = upkeep.verify(open_history(args.url, whole=True), progress=meter.show)
    paint = Screen().paint
    lines = [f"{counted(found.objects, 'object')}, {counted(found.files, 'file')}, {size(found.bytes)}"]
    lines += [f"{paint('damaged:', 'red')} {problem}" for problem in found.problems]
    if found.restorable_to and not found.clean:
        restore = f"topics restore {args.url} DIR --at-object {found.restorable_to}"
        lines.append(f"next: {restore}, the last state before the damage")
    lines.append(paint("clean", "green") if found.clean else paint(f"{len(found.problems)} damaged", "red"))
    return Outcome(found, lines, found.clean)


def _prune(args: argparse.Namespace) -> Outcome:
    from topics.storage.replica import upkeep

    done = upkeep.prune(open_history(args.url, whole=False), keep_ms=args.keep, now_ms=time.time_ns() // 1_000_000)
    removed = f"removed {counted(done.objects, 'object')} and {counted(done.files, 'file')} ({size(done.bytes)})"
    oldest = f"; the oldest moment is {shown_time(done.oldest_ms)}" if done.oldest_ms else ""
    return Outcome(done, [removed + oldest])


def run_restore(args: argparse.Namespace) -> Outcome:
    """Restore a replica into a directory: its end, which a server continues, or an earlier moment."""
    from topics.storage.backup import is_vacant, move_aside
    from topics.storage.fs import Fs
    from topics.storage.replica import start
    from topics.storage.replica.objects import ReplicaError
    from topics.storage.replica.restore import restore

    fs, directory = Fs(), os.path.normpath(args.directory)
    number, now_ms = args.at_object, time.time_ns() // 1_000_000
    at_ms = now_ms - args.ago if args.ago is not None else args.at
    history = open_history(args.source, whole=False)
    if at_ms is not None:
        number = history.at_time(at_ms)
    elif number is not None and number > history.last_number:
        raise ReplicaError(f"there is no object {number} yet; choose one up to {history.last_number}")
    if not is_vacant(fs, directory):
        move_aside(fs, directory, aside_of(directory) if args.force else None)
    began = time.monotonic()

    def seal(datadir: DataDir) -> int:
        """Let a server continue the replica with this directory, unless another one has done so by then."""
        end = history.end()
        start.write_owner(datadir, start.Owner(history.replica_id, end.term, end.instance))
        return end.number

    with Meter("restored") as meter:
        done = restore(
            history, fs, directory, number=number, restored_ms=None if number is None else now_ms,
            seal=seal if number is None else None,
            progress=meter.show,
        )  # fmt: skip
    lines = [
        f"restored object {done.object} of {shown_time(done.at_ms)} to {args.directory}: "
        f"{counted(done.files, 'file')}, {counted(done.log_files, 'log file')}, {size(done.bytes)}, "
        f"{time.monotonic() - began:.1f} s"
    ]
    if number is None and not done.clean:
        lines.append("a server that starts on it reports the seqs that the replica may lack as lost (failover)")
    elif number is not None:
        lines.append("it begins a new history: all topics have new epochs, and it does not continue the replica")
    return Outcome(done, [*lines, f"next: topics serve --data-dir {args.directory}"])
