"""`topics pipeline archive`: topics to a lake of Parquet."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = pipeline.add(subparsers, "archive", execute, "keep topics as Parquet files, for good, each record once")
    pipeline.add_url(parser)
    which = parser.add_argument_group("which topics, one of them at least")
    which.add_argument("--topic", action="append", default=[], metavar="T", help="a topic; may be given several times")
    which.add_argument("--prefix", metavar="P", help="every topic whose name begins like this")
    which.add_argument("--pattern", metavar="RE", help="every topic whose whole name matches this regular expression")
    parser.add_argument("--lake", required=True, metavar="DIR", help="directory of the lake; made if it is not there")
    pipeline.add_follow(parser, every_s=5.0)
    parser.add_argument("--trim", action="store_true", help="delete from the topics what the lake has confirmed")
    parser.add_argument(
        "--merge",
        type=int,
        default=8,
        metavar="N",
        help="merge small files once there are so many [%(default)d]; 0: never",
    )
    parser.add_argument(
        "--new-lake",
        action="store_true",
        help="go on though the server was told of more than this lake has; what is not live any more is a gap",
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
