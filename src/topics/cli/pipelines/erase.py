"""`topics pipeline erase`: delete the records of a tag and their copies, and print a receipt."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport, TopicReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = pipeline.add(
        subparsers,
        "erase",
        execute,
        "delete the records of a tag from topics, router copies and a lake",
        show=show,
        epilog="Prints a receipt with the number of deleted records per place. Exit status: 1 if records remain that\n"
        "may be copies.",
    )
    pipeline.add_url(parser)
    parser.add_argument("--match", required=True, metavar="TAG", help="a tag, or a tag prefix with *: user-42:*")
    parser.add_argument("--lake", metavar="DIR", help="also erase from this lake; its files are rewritten")
    which = parser.add_argument_group("topics [all]")
    which.add_argument(
        "--topic", action="append", default=[], metavar="T",
        help="only this topic and its router copies; repeatable",
    )  # fmt: skip
    which.add_argument("--prefix", metavar="P", help="only topics with this name prefix, and their router copies")
    pipeline.add_positions(parser)


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.erase.driver import erase

    return erase(
        url=args.url,
        match=args.match,
        lake=args.lake,
        topics=args.topic,
        prefix=args.prefix,
        positions_topic=args.positions,
        **pipeline.shared(args),
    )


def show(report: RunReport) -> str:
    """Return the receipt as text."""
    figures = report.figures
    verb = "would be erased" if report.dry_run else "erased"
    lines = [f"{figures['match']}: {counted(report.records, 'record')} {verb} (run {report.run_id})", ""]
    places = [row for row in report.topics if row.records or row.figures.get("ambiguous")]
    width = max((len(_place(row)) for row in places), default=0)
    lines += [f"  {_place(row):<{width}}  {row.records:>10,}{_detail(row)}" for row in places]
    clean = len(report.topics) - len(places)
    others = counted(clean, "other place was", "other places were")
    lines.append(f"{'' if not places else chr(10)}{others} checked and had no such records.")
    if figures.get("earlier"):
        lines.append(f"{figures['earlier']:,} of these were erased by earlier, killed runs.")
    lines += [f"warning: {text}" for text in report.warnings]
    return "\n".join(lines)


def _place(row: TopicReport) -> str:
    return f"lake   {row.topic}" if row.into else f"topic  {row.topic}"


def _detail(row: TopicReport) -> str:
    figures = row.figures
    if row.into:
        return f"  in {counted(figures['files'], 'file')}"
    parts = [f"{figures['copies']:,} of them copies without a tag"] if figures.get("copies") else []
    parts += [f"{figures['ambiguous']:,} left in doubt"] if figures.get("ambiguous") else []
    return f"  {', '.join(parts)}" if parts else ""
