"""`topics pipeline init`: a project of Spark Declarative Pipelines with topics at both ends, ready to run."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from topics.cli import pipeline
from topics.cli.fields import COLUMNS_MAX, Field, infer
from topics.cli.project import Project
from topics.client import Client
from topics.errors import Code, TopicsError
from topics.model.names import check_topic

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2
SAMPLE = 1000  # records from each end of the topic
TIMEOUT_S = 10.0
# Spark 4.3 encodes these when it makes the path of a checkpoint, and takes the result for a path.
ODD_IN_PATH = re.compile(r"[\s%\"<>\\^`{|}#?\[\]]")


class Refused(Exception):
    """What cannot be meant, and what to do instead."""

    def __init__(self, what: str, next_step: str) -> None:
        super().__init__(f"topics: {what}\nnext: {next_step}")


class File(Struct, frozen=True, kw_only=True, omit_defaults=True):
    path: str
    lines: int
    content: str | None = None  # in a dry run


class Made(Struct, kw_only=True):
    """The report; its first fields are those of every pipeline's."""

    pipeline: str = "init"
    dry_run: bool
    ok: bool = True
    url: str
    topic: str
    into: str
    directory: str
    files: list[File]
    sampled: int
    fields: list[Field]
    warnings: list[str]
    next: str


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "lay out a project of Spark Declarative Pipelines that reads and writes topics"
    parser = subparsers.add_parser(
        "init",
        help=text,
        description=f"{text[:1].upper()}{text[1:]}.",
        epilog="If the topic has records, a few are read to see which fields their data has; they become columns of a\n"
        "table. The project runs with any topic, there or not. No key is written into it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the project goes; made if it is not there")
    parser.add_argument(
        "--url", default=pipeline.default_url(), metavar="U", help="server [%(default)s]; or TOPICS_URL"
    )
    parser.add_argument("--topic", default="orders", metavar="T", help="topic to read [%(default)s]")
    parser.add_argument("--into", metavar="T", help="topic to write [the one to read, and .copy]")
    keys = parser.add_mutually_exclusive_group()
    keys.add_argument("--token", metavar="KEY", help="API key to look at the topic with; others can see it here")
    keys.add_argument("--token-file", metavar="FILE", help="file that holds the API key [TOPICS_TOKEN_FILE]")
    parser.add_argument("--force", action="store_true", help="write over files of the project that are there")
    parser.add_argument("--dry-run", action="store_true", help="print the files, and write none")
    parser.add_argument("--json", action="store_true", help="print what was made as one JSON object")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    try:
        made = _made(args)
    except Refused as refusal:
        print(refusal, file=sys.stderr)
        return EXIT_USAGE
    except OSError as error:
        print(f"topics: {error.filename}: {error.strerror}\nnext: give a DIR that can be written to", file=sys.stderr)
        return EXIT_FAILED
    print(msgspec.json.format(msgspec.json.encode(made)).decode() if args.json else _show(made))
    return EXIT_DONE


def _made(args: argparse.Namespace) -> Made:
    directory: Path = args.directory
    into = args.into or f"{args.topic}.copy"
    _check(args, into)
    token, warnings = _token(args), list[str]()
    values = _sample(args.url, args.topic, token, warnings)
    fields = infer(values)
    if values and not fields:
        warnings.append(f"none of {len(values)} records is a JSON object with fields: there is no table of fields")
    if len(fields) == COLUMNS_MAX:
        warnings.append(f"the table of fields has the {COLUMNS_MAX} that most records have")
    project = Project(
        directory=directory, url=args.url.rstrip("/"), topic=args.topic, into=into, fields=fields, sampled=len(values)
    )
    files = project.files()
    _refuse_to_overwrite(directory, files, force=args.force)
    if (directory / "storage").exists():
        warnings.append("storage/ is there: it goes on from where that stands. Remove it to begin anew")
    if not args.dry_run:
        _write(directory, files)
    return Made(
        dry_run=args.dry_run,
        url=project.url,
        topic=args.topic,
        into=into,
        directory=str(directory),
        files=[
            File(path=name, lines=text.count("\n"), content=text if args.dry_run else None)
            for name, text in files.items()
        ],
        sampled=len(values),
        fields=fields,
        warnings=warnings,
        next=_next(args),
    )


def _check(args: argparse.Namespace, into: str) -> None:
    try:
        check_topic(args.topic, field="--topic")
        check_topic(into, field="--into")
    except TopicsError as error:
        raise Refused(error.message, "give a name that a topic can have") from None
    if into == args.topic:
        raise Refused("--topic and --into are the same: it would read what it writes", "give another --into")
    if not re.fullmatch(r"https?://[^\s\"'\\@{}]+", args.url):
        raise Refused(f"{args.url!r} is no URL of a server", "give one like http://127.0.0.1:4000; keys go into a file")
    if odd := ODD_IN_PATH.findall(str(args.directory.resolve())):
        what = f"the path of {args.directory} has {odd[0]!r} in it: Spark would keep its checkpoints in another folder"
        raise Refused(what, "give a DIR whose whole path has letters, digits, dots, dashes and underscores")
    if args.directory.exists() and not args.directory.is_dir():
        raise Refused(f"{args.directory} is a file", "give a directory")


def _token(args: argparse.Namespace) -> str | None:
    file = args.token_file or (None if args.token else os.environ.get("TOPICS_TOKEN_FILE"))
    if not file:
        return str(args.token) if args.token else None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}", "give a file that holds the API key") from None


def _sample(url: str, topic: str, token: str | None, warnings: list[str]) -> list[Any]:
    """Data of records from both ends of the topic. A server that cannot be asked is no reason to fail: it may come."""
    values: list[Any] = []
    try:
        with Client(url, token=token, timeout_s=TIMEOUT_S, retries=1) as client:
            head = client.topic(topic).head_seq
            page = client.diff(topic, limit=SAMPLE)
            values += [record.value for record in page.records]
            if not page.caught_up:
                rest = client.diff(topic, from_seq=max(page.next_from_seq, head - SAMPLE), limit=SAMPLE)
                values += [record.value for record in rest.records]
    except (TopicsError, ValueError) as error:
        missing = isinstance(error, TopicsError) and error.code is Code.TOPIC_NOT_FOUND
        why = f"topic {topic} is not there yet" if missing else str(error)
        warnings.append(f"{why}: there is no table of fields")
    else:
        if not values:
            warnings.append(f"topic {topic} has no records yet: there is no table of fields")
    return values


def _refuse_to_overwrite(directory: Path, files: dict[str, str], *, force: bool) -> None:
    there = [name for name in files if (directory / name).exists()]
    if there and not force:
        what = f"{directory} has {', '.join(there)} already"
        raise Refused(what, "give another DIR, or --force to write over them")


def _write(directory: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


def _next(args: argparse.Namespace) -> str:
    """The command to type now."""
    steps = [f"cd {shlex.quote(str(args.directory))}"]
    if args.token_file:
        steps.append(f"export TOPICS_TOKEN_FILE={shlex.quote(os.path.abspath(args.token_file))}")
    elif args.token:
        steps.append("export TOPICS_TOKEN_FILE=FILE_WITH_THE_KEY")
    return " && ".join([*steps, "spark-pipelines run"])


def _show(made: Made) -> str:
    lines: list[str] = []
    for file in made.files:
        path = Path(made.directory) / file.path
        if file.content is None:
            lines.append(f"made {path}")
        else:
            lines += [f"--- would make {path}", file.content]
    lines += [f"note: {text}" for text in made.warnings]
    if made.fields:
        columns = ", ".join(f"{field.column} {field.type}" for field in made.fields)
        records = "1 record" if made.sampled == 1 else f"{made.sampled} records"
        lines.append(f"fields of data in {records}: {columns}")
    return "\n".join([*lines, "", f"next: {made.next}    (README.md says more)"])
