"""`topics pipeline audit`: is every seq accounted for?"""

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
        "prove that every seq is live, deleted, archived or in a recorded gap",
        show=show,
        epilog="Exits with 0 where nothing is unexplained, and lake and server tell the same; else with 1.\n"
        "--dry-run lists what would be looked at; it checks nothing, so its 0 proves nothing.",
    )
    pipeline.add_url(parser)
    parser.add_argument("--lake", metavar="DIR", required=True, help="lake that archive made")
    parser.add_argument(
        "--topic",
        metavar="T",
        action="append",
        default=[],
        help="only this topic; may be given several times. Without it, all that server and lake have, but sys: topics",
    )


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.audit.driver import audit

    return audit(url=args.url, lake=args.lake, topics=args.topic, **pipeline.shared(args))


def show(report: RunReport) -> str:
    from topics.spark.pipelines.audit.driver import describe

    return describe(report)
