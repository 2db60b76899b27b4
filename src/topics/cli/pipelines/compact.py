"""`topics pipeline compact`: keep the latest record of every key."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "keep the latest record of every tag, or of every value of an expression, as a Delta table or as a topic"
    parser = pipeline.add(subparsers, "compact", execute, text, extra="spark")
    pipeline.add_url(parser)
    parser.add_argument("--topic", required=True, metavar="T", help="topic to compact")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", metavar="T2", help="topic with one record per key")
    where.add_argument("--table", metavar="DIR", help=f"{pipeline.TABLE} with one row per key")
    parser.add_argument(
        "--by", metavar="SQL", default="tag", help="key expression, such as value:user.id::string [%(default)s]"
    )
    parser.add_argument("--null-removes", action="store_true", help="a record whose data is null removes its key")
    parser.add_argument("--full", action="store_true", help="start again at the first seq")
    parser.add_argument("--lake", metavar="DIR", help="lake with records that the topic no longer has")
    pipeline.add_follow(parser, every_s=10.0)
    pipeline.add_positions(parser)


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.compact import compact

    return compact(
        url=args.url,
        topic=args.topic,
        into=args.into,
        table=args.table,
        by=args.by,
        null_removes=args.null_removes,
        full=args.full,
        lake=args.lake,
        follow=args.follow,
        every_s=args.every,
        positions_topic=args.positions,
        **pipeline.shared(args),
    )
