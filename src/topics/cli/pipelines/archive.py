"""`topics pipeline archive`: copy topics to a lake of Delta tables."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = pipeline.add(subparsers, "archive", execute, "copy topics to a lake of Delta tables, each record once")
    pipeline.add_url(parser)
    which = parser.add_argument_group("topics, at least one of these")
    which.add_argument("--topic", action="append", default=[], metavar="T", help="a topic; repeatable")
    which.add_argument("--prefix", metavar="P", help="all topics with this name prefix")
    which.add_argument("--pattern", metavar="RE", help="all topics whose whole name matches this regular expression")
    parser.add_argument("--lake", required=True, metavar="DIR", help="directory of the lake; created if missing")
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
        **pipeline.shared(args),
    )
