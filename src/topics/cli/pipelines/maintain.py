"""`topics pipeline maintain`: merge small files of a lake, and remove old ones."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "merge small files of a lake, and remove files that no version needs"
    parser = pipeline.add(subparsers, "maintain", execute, text, show=_show)
    parser.add_argument("--lake", required=True, metavar="DIR", help=pipeline.LAKE)
    parser.add_argument(
        "--topic", action="append", default=[], metavar="T", help="only this topic; repeatable. Default: all topics"
    )
    parser.add_argument(
        "--merge", type=int, default=2, metavar="N", help="merge at least this many small files into one [%(default)d]"
    )
    parser.add_argument(
        "--retention",
        type=int,
        default=168,
        metavar="HOURS",
        help="keep replaced and uncommitted files this long, for readers and running archives [%(default)d]",
    )


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.maintain import maintain

    return maintain(
        lake=args.lake,
        topics=args.topic,
        merge_files=args.merge,
        retention_hours=args.retention,
        **pipeline.shared(args),
    )


def _show(report: RunReport) -> str:
    from topics.spark.pipelines.maintain import describe

    return describe(report)
