"""`topics pipeline archive`: copy topics to a lake of Delta tables."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = pipeline.add(subparsers, "archive", execute, "copy topics to a lake of Delta tables, each record once")
    pipeline.add_url(parser)
    pipeline.add_spark(parser)
    which = parser.add_argument_group("topics, at least one of these")
    which.add_argument("--topic", action="append", default=[], metavar="T", help="a topic; repeatable")
    which.add_argument("--prefix", metavar="P", help="all topics with this name prefix")
    which.add_argument("--pattern", metavar="RE", help="all topics whose whole name matches this regular expression")
    parser.add_argument("--lake", required=True, metavar="DIR", help=f"{pipeline.LAKE}; created if missing")
    parser.add_argument(
        "--columns",
        action="append",
        default=[],
        metavar="LIST",
        help="fields of data that get typed columns, such as 'sku STRING, qty INT'; for one topic: TOPIC=LIST, "
        "repeatable; from a TOML file of topics and lists: @FILE",
    )
    pipeline.add_follow(parser, every_s=5.0)
    parser.add_argument(
        "--trim", action="store_true", help="delete records from the topics once the lake has confirmed them"
    )
    parser.add_argument(
        "--merge",
        type=int,
        default=8,
        metavar="N",
        help="merge this many small files into one [%(default)d]; 0 disables merging",
    )
    parser.add_argument(
        "--new-lake",
        action="store_true",
        help="continue with a lake that has less than the server expects; missing records become a gap",
    )


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """Return the lists of typed columns by topic; the key "" stands for every topic."""
    found: dict[str, str] = {}
    for text in given:
        if text.startswith("@"):
            found |= _from_file(text[1:])
        elif (one := re.fullmatch(r"\s*([A-Za-z0-9][A-Za-z0-9._:-]*)\s*=(.*)", text, re.DOTALL)) is not None:
            found[one[1]] = one[2]
        else:
            found[""] = text
    return found


def _from_file(path: str) -> dict[str, str]:
    from topics.spark.failures import BadUsage

    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadUsage(f"--columns: {path}: {error}") from None
    if wrong := [topic for topic, text in found.items() if not isinstance(text, str)]:
        raise BadUsage(f'--columns: {path}: {wrong[0]} is not a text such as "sku STRING, qty INT"')
    return found


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.archive.driver import archive

    return archive(
        url=args.url,
        lake=args.lake,
        topics=args.topic,
        prefix=args.prefix,
        pattern=args.pattern,
        follow=args.follow,
        trim=args.trim,
        every_s=args.every,
        merge_files=args.merge,
        new_lake=args.new_lake,
        columns=columns_of(args.columns),
        **pipeline.shared(args),
    )
