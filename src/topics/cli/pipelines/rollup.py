"""`topics pipeline rollup`: compute windowed aggregates of a topic."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport
    from topics.spark.pipelines.windows import Declaration

FIELDS = ("topic", "into", "table", "window", "slide", "time", "watermark", "where", "by", "select", "sql", "tag")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "compute windowed aggregates of a topic, each window written once"
    parser = pipeline.add(subparsers, "rollup", execute, text, extra="spark")
    pipeline.add_url(parser)
    parser.add_argument("--file", metavar="TOML", help="file with the options below; options on the command line win")
    parser.add_argument("--topic", metavar="T", help="topic to aggregate")
    parser.add_argument("--into", metavar="T2", help="topic for the results")
    parser.add_argument("--table", metavar="DIR", help=f"{pipeline.TABLE} for the results")
    parser.add_argument("--window", metavar="LENGTH", help="length of a window, such as '1 hour'")
    parser.add_argument("--slide", metavar="LENGTH", help="step between overlapping windows")
    parser.add_argument("--time", metavar="SQL", help="event time [ts, the commit time]")
    parser.add_argument("--watermark", metavar="LENGTH", help="allowed lateness of a record [0 seconds]")
    parser.add_argument("--where", metavar="SQL", help="only matching records")
    parser.add_argument("--by", metavar="SQL", action="append", help="group by this expression; repeatable")
    parser.add_argument(
        "--select", metavar="SQL", action="append", help="an aggregate with its name; repeatable [count(*) AS count]"
    )
    parser.add_argument("--sql", metavar="SELECT", help="a query FROM records, instead of --where, --by and --select")
    parser.add_argument("--tag", metavar="SQL", help="tag of the output records, from columns of the result")
    parser.add_argument("--full", action="store_true", help="start again at the first seq; windows are written again")
    parser.add_argument("--lake", metavar="DIR", help="lake with records that the topic no longer has")
    pipeline.add_follow(parser, every_s=5.0)
    pipeline.add_positions(parser)


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.rollup import rollup

    return rollup(
        url=args.url,
        declaration=declared(args),
        full=args.full,
        lake=args.lake,
        follow=args.follow,
        every_s=args.every,
        positions_topic=args.positions,
        **pipeline.shared(args),
    )


def declared(args: argparse.Namespace) -> Declaration:
    """Return the declaration of the file, overridden by the options. Raise `BadUsage` if it is invalid."""
    import msgspec

    from topics.spark.failures import BadUsage
    from topics.spark.pipelines.windows import Declaration

    said: dict[str, Any] = {}
    try:
        if args.file is not None:
            said = msgspec.toml.decode(Path(args.file).read_bytes())
        given = {name: getattr(args, name) for name in FIELDS if getattr(args, name) is not None}
        return msgspec.convert(said | given, Declaration)
    except OSError as error:
        raise BadUsage(f"{args.file}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadUsage(f"{args.file or 'rollup'}: {error}") from None
