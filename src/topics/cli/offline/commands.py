"""`topics verify`, `topics backup`, `topics repair`, `topics restore`: work on a data directory without a server."""

from __future__ import annotations

import argparse
import gc
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from topics.cli.offline.guarded import Execute, Meter, aside_of, fail, guarded
from topics.cli.options import Row, add_parser, one_of, option
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED, EXIT_USAGE
from topics.cli.output.screen import Screen, pretty_json
from topics.cli.output.units import parse_time, size
from topics.cli.tree import Subparsers
from topics.clock import SystemClock
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.engine.offline.verify import Report
    from topics.storage.backup import Copied

TOPICS_SHOWN = 100
NOTES_SHOWN = 20


def register(subparsers: Subparsers) -> None:
    directory = option("DIR", "data directory of a stopped server, or a backup", dest="directory")
    examples = "  topics verify /var/lib/topics\n  topics verify /backup/topics --json\n"
    _add(subparsers, "verify", run_verify, directory, _add_cold_dir, examples=examples)
    directory = option("DIR", "data directory to copy", dest="directory")
    target = option("TARGET", "new directory, or an earlier backup to update")
    examples = "  topics backup /var/lib/topics /backup/topics       the same again updates it\n"
    _add(subparsers, "backup", run_backup, directory, target, _add_cold_dir, examples=examples)
    directory = option("DIR", "data directory of a stopped server", dest="directory")
    origin = option("--from SOURCE", "a backup, or the URL of a replica [TOPICS_REPLICA]", dest="source",
                    default=os.environ.get("TOPICS_REPLICA") or None)  # fmt: skip
    examples = "  topics repair /var/lib/topics --from /backup/topics\n"
    _add(subparsers, "repair", run_repair, directory, origin, _add_cold_dir, examples=examples)
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


def _add_cold_dir(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("TOPICS_COLD_DIR") or None
    text = "directory of the server's cold segments [TOPICS_COLD_DIR]"
    option("--cold-dir DIRECTORY", text, default=default)(parser)


# --- verify


def run_verify(args: argparse.Namespace) -> int:
    from topics.engine.offline.verify import verify
    from topics.storage.fs import Fs

    began = time.monotonic()
    with Meter("checked") as meter:
        gc.disable()  # nothing that a check makes is garbage before its end, and there may be millions of objects
        report = verify(Fs(), args.directory, cold_dir=args.cold_dir, progress=meter.show)
    if args.json:
        print(pretty_json(report))
    else:
        _print_report(report, time.monotonic() - began)
    return EXIT_DONE if report.clean else EXIT_FAILED


def _print_report(report: Report, seconds: float) -> None:
    screen = Screen()
    snapshot = "no snapshot" if report.snapshot is None else f"snapshot {report.snapshot}"
    entries = "1 entry" if report.log_entries == 1 else f"{report.log_entries:,} entries"
    log = f"{entries} in {counted(report.log_files, 'log file')}"
    files = f"{counted(report.files, 'file')}, {size(report.bytes)}"
    print(f"{report.directory}: {files}, {snapshot}, {log}, {seconds:.1f} s")
    _print_topics(report, screen)
    for note in report.notes[:NOTES_SHOWN]:
        print(f"{screen.paint('note:', 'dim')} {note}")
    if len(report.notes) > NOTES_SHOWN:
        print(f"note: {len(report.notes) - NOTES_SHOWN} more notes; --json has them all")
    for found in report.damage:
        print(f"{screen.paint('damaged:', 'red')} {found.file} at byte {found.offset}: {found.what}")
        if found.topic is not None:
            seqs = "" if found.first_seq is None else f", seqs {found.first_seq} to {found.last_seq}"
            print(f"  topic {found.topic}{seqs}")
        print(f"  {screen.paint('next:', 'cyan')} {found.next}")
    print(screen.paint("clean", "green") if report.clean else screen.paint(f"{len(report.damage)} damaged", "red"))


def _print_topics(report: Report, screen: Screen) -> None:
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
        print(screen.paint(f"  {row[0].ljust(widths[0])}  {figures}  ", "" if at else "bold") + lost)
    if len(report.topics) > TOPICS_SHOWN:
        print(f"  {len(report.topics) - TOPICS_SHOWN} more topics; --json has them all")


# --- backup and restore


def run_backup(args: argparse.Namespace) -> int:
    from topics.storage.backup import copy
    from topics.storage.fs import Fs

    if (problem := _overlap(args.directory, args.target)) is not None:
        return fail(problem, EXIT_USAGE)
    try:
        os.listdir(args.directory)
    except OSError as error:
        return fail(f"{args.directory} cannot be read: {error.strerror}", EXIT_USAGE)
    began = time.monotonic()
    with Meter("copied") as meter:
        done = copy(Fs(), args.directory, args.target, cold_dir=args.cold_dir, progress=meter.show)
    return _print_copied(done, time.monotonic() - began, args, args.target, verb="backed up")


def run_repair(args: argparse.Namespace) -> int:
    from topics.storage import repair
    from topics.storage.fs import Fs

    if args.source is None:
        return fail("no source is named; add --from with a backup or the URL of a replica", EXIT_USAGE)
    source: repair.Source
    if "://" in args.source:
        from topics.cli.offline.replica import open_history

        source = repair.Replica(open_history(args.source, whole=False))
    elif (problem := _overlap(args.directory, args.source)) is not None:
        return fail(problem, EXIT_USAGE)
    else:
        source = repair.Backup(Fs(), args.source)
    done = repair.repair(Fs(), args.directory, source, cold_dir=args.cold_dir)
    if args.json:
        print(pretty_json(done))
        return EXIT_FAILED if done.missing else EXIT_DONE
    screen = Screen()
    for text in done.ranges:
        print(f"{screen.paint('repaired:', 'green')} {text}")
    for text in done.missing:
        print(f"{screen.paint('not found:', 'red')} {text}")
    print(f"repaired {counted(len(done.ranges), 'range')} ({size(done.bytes)}), {len(done.missing)} not found")
    print(f"next: topics verify {args.directory}")
    return EXIT_FAILED if done.missing else EXIT_DONE


def run_restore(args: argparse.Namespace) -> int:
    from topics.storage.backup import restore
    from topics.storage.fs import Fs

    if "://" in args.source:
        from topics.cli.offline import replica

        return replica.run_restore(args)
    if (args.at, args.ago, args.at_object) != (None, None, None):
        return fail("a backup has one state; leave out --at, --ago and --at-object, or name a replica", EXIT_USAGE)
    if (problem := _overlap(args.source, args.directory)) is not None:
        return fail(problem, EXIT_USAGE)
    aside, directory = None, os.path.normpath(args.directory)
    if os.path.islink(directory):  # the link remains: systemd makes one to the state directory of a dynamic user
        directory = os.path.realpath(directory)
    if args.force and os.path.isdir(directory):
        aside = aside_of(directory)
    began = time.monotonic()
    with Meter("copied") as meter:
        now_ms = SystemClock().now_ms()
        done = restore(Fs(), args.source, directory, now_ms=now_ms, set_aside=aside, progress=meter.show)
    status = _print_copied(done, time.monotonic() - began, args, args.directory, verb="restored")
    if not args.json:
        if aside is not None and os.path.isdir(aside):
            print(f"moved the earlier {args.directory} to {aside}")
        print(f"next: topics serve --data-dir {args.directory}")
    return status


def _overlap(one: str, other: str) -> str | None:
    first, second = os.path.realpath(one), os.path.realpath(other)
    if first == second or first.startswith(second + os.sep) or second.startswith(first + os.sep):
        return f"{one} and {other} overlap; choose two separate directories"
    return None


def _print_copied(done: Copied, seconds: float, args: argparse.Namespace, target: str, *, verb: str) -> int:
    """Print what the copy holds, its log included. A copy that cannot be counted has only what its snapshot names."""
    from topics.engine.offline.directory import Directory
    from topics.errors import Corrupt
    from topics.storage.fs import Fs

    counted_log = False
    with suppress(Corrupt), Directory(Fs(), target, now_ms=0) as held:
        done.topics, done.records = len(held.topics), sum(topic.count for topic in held.topics.values())
        counted_log = True
    if args.json:
        print(pretty_json(done))
        return EXIT_FAILED if done.problems else EXIT_DONE
    screen = Screen()
    where = f"snapshot {done.snapshot} and {counted(done.log_files, 'log file')}"
    held_in = "" if counted_log else " in the snapshot"
    print(f"{verb} {counted(done.topics, 'topic')}, {counted(done.records, 'record')}{held_in} to {target}")
    print(
        f"{where}; copied {counted(done.segments_copied, 'segment')} ({size(done.bytes_copied)} in all), "
        f"reused {done.segments_reused:,} ({size(done.bytes_reused)}), {seconds:.1f} s"
    )
    for problem in done.problems:
        print(f"{screen.paint('damaged:', 'red')} {problem}")
    if done.problems:
        print("the copy contains this damage, except where it had a good file; `topics verify` lists what it lacks")
    return EXIT_FAILED if done.problems else EXIT_DONE


# --- progress
