"""`topics pipeline audit`: verify that every seq is accounted for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = pipeline.add(
        subparsers,
        "audit",
        execute,
        "verify that every seq is live, deleted, archived or in a recorded gap",
        show=show,
        epilog="Exit status: 0 if every seq is explained and lake and server agree, else 1.\n"
        "--dry-run lists what would be checked and checks nothing.",
    )
    pipeline.add_url(parser)
    pipeline.add_spark(parser)
    parser.add_argument("--lake", metavar="DIR", required=True, help="lake to compare with")
    parser.add_argument(
        "--topic",
        metavar="T",
        action="append",
        default=[],
        help="only this topic; repeatable. Default: all topics of server and lake, except sys: topics",
    )


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.audit import audit

    return audit(url=args.url, lake=args.lake, topics=args.topic, **pipeline.shared(args))


def show(report: RunReport) -> str:
    from topics.spark.pipelines.audit import describe

    return describe(report)
