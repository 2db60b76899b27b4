"""`topics verify`, `topics backup`, `topics repair`, `topics restore`: work on a data directory without a server."""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from topics.cli.offline.guarded import Execute, Meter, Outcome, aside_of, failure, guarded
from topics.cli.options import Row, add_parser, one_of, option
from topics.cli.output.screen import Screen
from topics.cli.output.units import parse_time, size
from topics.cli.tree import Subparsers
from topics.clock import SystemClock
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.engine.offline.verify import Report
    from topics.storage.backup import Copied

TOPICS_SHOWN = 100
NOTES_SHOWN = 20
COLD_DIR = option(
    "--cold-dir DIRECTORY", "directory of the server's cold segments [TOPICS_COLD_DIR]", env="TOPICS_COLD_DIR"
)


def register(subparsers: Subparsers) -> None:
    directory = option("DIR", "data directory of a stopped server, or a backup", dest="directory")
    examples = "  topics verify /var/lib/topics\n  topics verify /backup/topics --json\n"
    _add(subparsers, "verify", run_verify, directory, COLD_DIR, examples=examples)
    directory = option("DIR", "data directory to copy", dest="directory")
    target = option("TARGET", "new directory, or an earlier backup to update")
    examples = "  topics backup /var/lib/topics /backup/topics       the same again updates it\n"
    _add(subparsers, "backup", run_backup, directory, target, COLD_DIR, examples=examples)
    directory = option("DIR", "data directory of a stopped server", dest="directory")
    text = "a backup, or the URL of a replica [TOPICS_REPLICA]"
    origin = option("--from SOURCE", text, dest="source", env="TOPICS_REPLICA")
    examples = "  topics repair /var/lib/topics --from /backup/topics\n"
    _add(subparsers, "repair", run_repair, directory, origin, COLD_DIR, examples=examples)
    source = option("SOURCE", "the backup, or the URL of a replica (TOPICS_REPLICA)")
    directory = option("DIR", "new data directory; must be empty or absent", dest="directory")
    force = option("--force", "move an existing data directory aside")
    moment = one_of(
        option("--at TIME", "of a replica: the state at this time (ISO 8601)", type=parse_time),
        option("--ago DURATION", "of a replica: the state this long ago"),
        option("--at-object N", "of a replica: the state at this object"),
    )
    examples = "  topics restore /backup/topics /var/lib/topics --force      the server must be stopped\n"
    examples += "  topics restore s3://bucket/prefix /tmp/before --at 2026-11-17T06:00Z\n"
    _add(subparsers, "restore", run_restore, source, directory, force, moment, examples=examples)


def _add(subparsers: Subparsers, name: str, execute: Execute, *rows: Row, examples: str) -> None:
    as_json = option("--json", "print the result as one JSON object; without it, text, also in a pipe")
    parser = add_parser(subparsers, name, "", as_json, *rows, examples=examples)
    parser.set_defaults(execute=lambda args: guarded(execute, args))


# --- verify


def run_verify(args: argparse.Namespace) -> Outcome:
    from topics.engine.offline.verify import verify
    from topics.storage.fs import Fs

    began = time.monotonic()
    with Meter("checked") as meter:
        gc.disable()  # nothing that a check makes is garbage before its end, and there may be millions of objects
        report = verify(Fs(), args.directory, cold_dir=args.cold_dir, progress=meter.show)
    return Outcome(report, _report_lines(report, time.monotonic() - began), report.clean)


def _report_lines(report: Report, seconds: float) -> Iterator[str]:
    paint = Screen().paint
    snapshot = "no snapshot" if report.snapshot is None else f"snapshot {report.snapshot}"
    entries = "1 entry" if report.log_entries == 1 else f"{report.log_entries:,} entries"
    log = f"{entries} in {counted(report.log_files, 'log file')}"
    files = f"{counted(report.files, 'file')}, {size(report.bytes)}"
    yield f"{report.directory}: {files}, {snapshot}, {log}, {seconds:.1f} s"
    yield from _topic_lines(report, Screen())
    yield from (f"{paint('note:', 'dim')} {note}" for note in report.notes[:NOTES_SHOWN])
    if len(report.notes) > NOTES_SHOWN:
        yield f"note: {len(report.notes) - NOTES_SHOWN} more notes; --json has them all"
    for found in report.damage:
        yield f"{paint('damaged:', 'red')} {found.file} at byte {found.offset}: {found.what}"
        if found.topic is not None:
            seqs = "" if found.first_seq is None else f", seqs {found.first_seq} to {found.last_seq}"
            yield f"  topic {found.topic}{seqs}"
        yield f"  {paint('next:', 'cyan')} {found.next}"
    yield paint("clean", "green") if report.clean else paint(f"{len(report.damage)} damaged", "red")


def _topic_lines(report: Report, screen: Screen) -> Iterator[str]:
    if not report.topics:
        return
    rows = [("topic", "head", "live", "bytes", "deleted", "lost")]
    for one in report.topics[:TOPICS_SHOWN]:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(one.lost.items()))
        lost = f"{sum(one.lost.values())}" + (f" ({reasons})" if reasons else "")
        rows.append((one.topic, str(one.head_seq), str(one.live), size(one.bytes), str(one.deleted), lost))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, row in enumerate(rows):
        figures = "  ".join(cell.rjust(width) for cell, width in zip(row[1:5], widths[1:5], strict=True))
        lost = screen.paint(row[5], "yellow" if at and row[5] != "0" else "")
        yield screen.paint(f"  {row[0].ljust(widths[0])}  {figures}  ", "" if at else "bold") + lost
    if len(report.topics) > TOPICS_SHOWN:
        yield f"  {len(report.topics) - TOPICS_SHOWN} more topics; --json has them all"


# --- backup and restore


def run_backup(args: argparse.Namespace) -> Outcome:
    from topics.storage.backup import copy
    from topics.storage.fs import Fs

    _check_separate(args.directory, args.target)
    try:
        os.listdir(args.directory)
    except OSError as error:
        raise failure(f"{args.directory} cannot be read: {error.strerror}") from None
    began = time.monotonic()
    with Meter("copied") as meter:
        done = copy(Fs(), args.directory, args.target, cold_dir=args.cold_dir, progress=meter.show)
    return _copied(done, time.monotonic() - began, args.target, verb="backed up")


def run_repair(args: argparse.Namespace) -> Outcome:
    from topics.storage import repair
    from topics.storage.fs import Fs

    if args.source is None:
        raise failure("no source is named; add --from with a backup or the URL of a replica")
    source: repair.Source
    if "://" in args.source:
        from topics.cli.offline.replica import open_history

        source = repair.Replica(open_history(args.source, whole=False))
    else:
        _check_separate(args.directory, args.source)
        source = repair.Backup(Fs(), args.source)
    done, paint = repair.repair(Fs(), args.directory, source, cold_dir=args.cold_dir), Screen().paint
    lines = [
        *(f"{paint('repaired:', 'green')} {text}" for text in done.ranges),
        *(f"{paint('not found:', 'red')} {text}" for text in done.missing),
        f"repaired {counted(len(done.ranges), 'range')} ({size(done.bytes)}), {len(done.missing)} not found",
        f"next: topics verify {args.directory}",
    ]
    return Outcome(done, lines, not done.missing)


def run_restore(args: argparse.Namespace) -> Outcome:
    from topics.storage.backup import restore
    from topics.storage.fs import Fs

    if "://" in args.source:
        from topics.cli.offline import replica

        return replica.run_restore(args)
    if (args.at, args.ago, args.at_object) != (None, None, None):
        raise failure("a backup has one state; leave out --at, --ago and --at-object, or name a replica")
    _check_separate(args.source, args.directory)
    aside, directory = None, os.path.normpath(args.directory)
    if os.path.islink(directory):  # the link remains: systemd makes one to the state directory of a dynamic user
        directory = os.path.realpath(directory)
    if args.force and os.path.isdir(directory):
        aside = aside_of(directory)
    began = time.monotonic()
    with Meter("copied") as meter:
        now_ms = SystemClock().now_ms()
        done = restore(Fs(), args.source, directory, now_ms=now_ms, set_aside=aside, progress=meter.show)
    copied = _copied(done, time.monotonic() - began, args.directory, verb="restored")
    moved = [f"moved the earlier {args.directory} to {aside}"] if aside is not None and os.path.isdir(aside) else []
    return copied._replace(lines=[*copied.lines, *moved, f"next: topics serve --data-dir {args.directory}"])


def _check_separate(one: str, other: str) -> None:
    first, second = os.path.realpath(one), os.path.realpath(other)
    if first == second or first.startswith(second + os.sep) or second.startswith(first + os.sep):
        raise failure(f"{one} and {other} overlap; choose two separate directories")


def _copied(done: Copied, seconds: float, target: str, *, verb: str) -> Outcome:
    """Return what the copy holds, its log included. A copy that cannot be counted has only what its snapshot names."""
    from topics.engine.offline.directory import Directory
    from topics.errors import Corrupt
    from topics.storage.fs import Fs

    held_in = " in the snapshot"
    with suppress(Corrupt), Directory(Fs(), target, now_ms=0) as held:
        done.topics, done.records = len(held.topics), sum(topic.count for topic in held.topics.values())
        held_in = ""
    where = f"snapshot {done.snapshot} and {counted(done.log_files, 'log file')}"
    lines = [
        f"{verb} {counted(done.topics, 'topic')}, {counted(done.records, 'record')}{held_in} to {target}",
        f"{where}; copied {counted(done.segments_copied, 'segment')} ({size(done.bytes_copied)} in all), "
        f"reused {done.segments_reused:,} ({size(done.bytes_reused)}), {seconds:.1f} s",
        *(f"{Screen().paint('damaged:', 'red')} {problem}" for problem in done.problems),
    ]
    if done.problems:
        lines.append(
            "the copy contains this damage, except where it had a good file; `topics verify` lists what it lacks"
        )
    return Outcome(done, lines, not done.problems)
