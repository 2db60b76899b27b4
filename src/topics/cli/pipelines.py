"""The commands of `topics pipeline`: their options, which have the names of the arguments of the pipeline functions."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topics.cli import pipeline
from topics.cli.connect.target import add_address
from topics.cli.tree import Subparsers, add_parser
from topics.plurals import counted

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport, TopicReport

Args = argparse.Namespace

TABLE = "Delta table, a directory or a URL that begins with s3://, gs:// or az://,"
LAKE = "the lake: a directory, or a URL that begins with s3://, gs:// or az://"
OLD_RECORDS = "lake with records that the topic no longer has"


def register(subparsers: Subparsers) -> None:
    parser = add_parser(subparsers, "pipeline")
    commands = parser.add_subparsers(title="pipelines", metavar="PIPELINE", required=True)
    for add in (_archive, _audit, _compact, _erase, _maintain, _mirror, _replay, _rollup):
        add(commands)


def _add_topics(group: argparse._ActionsContainer, help: str) -> None:
    group.add_argument("--topic", dest="topics", action="append", default=[], metavar="T", help=help)


# --- archive


def _archive(commands: Subparsers) -> None:
    text = "copy topics to a lake of Delta tables, each record once"
    parser = pipeline.add(commands, "archive", text, arguments=_archive_arguments)
    add_address(parser)
    pipeline.add_spark(parser)
    which = parser.add_argument_group("topics, at least one of these")
    _add_topics(which, "a topic; repeatable")
    which.add_argument("--prefix", metavar="P", help="all topics with this name prefix")
    which.add_argument("--pattern", metavar="RE", help="all topics whose whole name matches this regular expression")
    parser.add_argument("--lake", required=True, metavar="DIR", help=f"{LAKE}; created if missing")
    parser.add_argument(
        "--columns", action="append", default=[], metavar="LIST",
        help="fields of data that get typed columns, such as 'sku STRING, qty INT'; for one topic: TOPIC=LIST, "
        "repeatable; from a TOML file of topics and lists: @FILE",
    )  # fmt: skip
    pipeline.add_follow(parser, every_s=5.0)
    parser.add_argument(
        "--trim", action="store_true", help="delete records from the topics once the lake has confirmed them"
    )
    parser.add_argument(
        "--merge", dest="merge_files", type=int, default=8, metavar="N",
        help="merge this many small files into one [%(default)d]; 0 disables merging",
    )  # fmt: skip
    parser.add_argument(
        "--new-lake", action="store_true",
        help="continue with a lake that has less than the server expects; missing records become a gap",
    )  # fmt: skip


def _archive_arguments(args: Args) -> dict[str, Any]:
    return {**pipeline.own(args), "columns": columns_of(args.columns)}


def columns_of(given: Sequence[str]) -> dict[str, str]:
    """Return the lists of typed columns by topic; the key "" is for every topic."""
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


# --- audit


def _audit(commands: Subparsers) -> None:
    parser = pipeline.add(
        commands, "audit", "verify that every seq is live, deleted, archived or in a recorded gap",
        epilog="Exit status: 0 if every seq is explained and lake and server agree, else 1.\n"
        "--dry-run lists what would be checked and checks nothing.",
    )  # fmt: skip
    add_address(parser)
    pipeline.add_spark(parser)
    parser.add_argument("--lake", metavar="DIR", required=True, help="lake to compare with")
    _add_topics(parser, "only this topic; repeatable. Default: all topics of server and lake, except sys: topics")


# --- compact


def _compact(commands: Subparsers) -> None:
    text = "keep the latest record of every tag, or of every value of an expression, as a Delta table or as a topic"
    parser = pipeline.add(commands, "compact", text, extra="spark")
    add_address(parser)
    parser.add_argument("--topic", required=True, metavar="T", help="topic to compact")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", metavar="T2", help="topic with one record per key")
    where.add_argument("--table", metavar="DIR", help=f"{TABLE} with one row per key")
    parser.add_argument(
        "--by", metavar="SQL", default="tag", help="key expression, such as value:user.id::string [%(default)s]"
    )
    parser.add_argument("--null-removes", action="store_true", help="a record whose data is null removes its key")
    parser.add_argument("--full", action="store_true", help="start again at the first seq")
    parser.add_argument("--lake", metavar="DIR", help=OLD_RECORDS)
    pipeline.add_follow(parser, every_s=10.0)
    pipeline.add_positions(parser)


# --- erase


def _erase(commands: Subparsers) -> None:
    parser = pipeline.add(
        commands, "erase", "delete the records of a tag from topics, router copies and a lake", show=_receipt,
        epilog="Prints a receipt with the number of deleted records per place. Exit status: 1 if records remain that\n"
        "may be copies.",
    )  # fmt: skip
    add_address(parser)
    parser.add_argument("--match", required=True, metavar="TAG", help="a tag, or a tag prefix with *: user-42:*")
    parser.add_argument("--lake", metavar="DIR", help="also erase from this lake; its files are rewritten")
    which = parser.add_argument_group("topics [all]")
    _add_topics(which, "only this topic and its router copies; repeatable")
    which.add_argument("--prefix", metavar="P", help="only topics with this name prefix, and their router copies")
    pipeline.add_positions(parser)


def _receipt(report: RunReport) -> str:
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


# --- maintain


def _maintain(commands: Subparsers) -> None:
    text = "merge small files of a lake, and remove files that no version needs"
    parser = pipeline.add(commands, "maintain", text)
    parser.add_argument("--lake", required=True, metavar="DIR", help=LAKE)
    _add_topics(parser, "only this topic; repeatable. Default: all topics")
    parser.add_argument(
        "--merge", dest="merge_files", type=int, default=2, metavar="N",
        help="merge at least this many small files into one [%(default)d]",
    )  # fmt: skip
    parser.add_argument(
        "--retention", dest="retention_hours", type=int, default=168, metavar="HOURS",
        help="keep replaced and uncommitted files this long, for readers and running archives [%(default)d]",
    )  # fmt: skip


# --- mirror


def _mirror(commands: Subparsers) -> None:
    text = "copy topics to another server, or in both directions, each record once and without echoes"
    parser = pipeline.add(commands, "mirror", text)
    parser.add_argument("--from", dest="source", metavar="URL", required=True, help="server to copy from")
    parser.add_argument("--to", dest="target", metavar="URL", required=True, help="server to copy to")
    which = parser.add_argument_group("topics, at least one of these")
    which.add_argument("--prefix", metavar="P", help="all topics with this name prefix; '' for all")
    _add_topics(which, "a topic; repeatable")
    parser.add_argument("--both-ways", action="store_true", help="also copy in the other direction")
    parser.add_argument("--follow", action="store_true", help="keep running until SIGINT or SIGTERM")
    parser.add_argument(
        "--only-local", action="store_true",
        help="skip records that came from a third server; for servers that are all linked",
    )  # fmt: skip
    parser.add_argument("--lake", metavar="DIR", help="lake of --from, for records that the server no longer has")
    parser.add_argument(
        "--skip-trimmed", action="store_true",
        help="continue without records that archive --trim deleted before they were copied",
    )  # fmt: skip
    for side, word in (("from", "source"), ("to", "target")):
        parser.add_argument(f"--{side}-name", metavar="NAME", dest=f"{word}_name", help="name of that server in copies")
        parser.add_argument(
            f"--{side}-node", metavar="NODE", dest=f"{word}_nodes", action="append", default=[],
            help="a node that writes on that server only; the node filter of the other server skips its copies",
        )  # fmt: skip
        parser.add_argument(
            f"--{side}-token-file", metavar="FILE", dest=f"{word}_token_file",
            help="file with the API key of that server",
        )  # fmt: skip
    pipeline.add_positions(parser)
    pipeline.add_spark(parser)


# --- replay


REPLAY_EPILOG = """\
The same command is the same replay: if you run it again, it continues where it stopped and replays no record twice. To
replay the same records again, use --name. Each record has its origin in its meta, under _topics_replay.

examples:
  topics pipeline replay --lake /lake --topic orders --url http://127.0.0.1:4000 --into orders.again
  topics pipeline replay --lake /lake --topic orders --into rerun --where "data.total > 1000" --rate 500
  topics pipeline replay --path /backup --topic orders --into rescued --since 2025-05-28T00:00:00Z
"""


def _replay(commands: Subparsers) -> None:
    text = "write records of a lake, a directory or a topic to a topic again"
    parser = pipeline.add(commands, "replay", text, arguments=_replay_arguments, epilog=REPLAY_EPILOG)
    parser.add_argument(
        "--lake", metavar="DIR", help="from this lake; with --from-url, from lake and server as one history"
    )
    parser.add_argument("--path", metavar="DIR", help="from the data directory of a stopped server, or a backup")
    parser.add_argument("--from-url", dest="source_url", metavar="U", help="from this server")
    parser.add_argument(
        "--from-token-file", dest="source_token_file", metavar="FILE", help="file with the API key of that server"
    )
    parser.add_argument("--topic", metavar="T", required=True, help="topic to replay")
    add_address(parser, "server to write to")
    parser.add_argument("--into", metavar="T2", required=True, help="topic to write to")
    parser.add_argument(
        "--where", metavar="SQL", help="only matching records, such as \"data.qty > 1 AND tag = 'web'\""
    )
    parser.add_argument("--from-seq", metavar="N", type=_seq, help="first seq")
    parser.add_argument("--to-seq", metavar="N", type=_seq, help="last seq")
    parser.add_argument("--since", metavar="TIME", help="from this time on: ISO 8601 or epoch milliseconds")
    parser.add_argument("--until", metavar="TIME", help="before this time")
    parser.add_argument("--tag", metavar="TAG", help="only this tag, or with a trailing *, tags with this prefix")
    parser.add_argument("--rate", metavar="N", type=float, help="maximum records per second")
    parser.add_argument("--node", metavar="NODE", help="node of the replayed records, instead of the original one")
    parser.add_argument("--name", metavar="NAME", help="name of the replay; a new name is a new replay")
    parser.add_argument(
        "--allow-gaps", action="store_true", help="continue at gaps of the source, and write a record for each"
    )
    pipeline.add_positions(parser)
    pipeline.add_spark(parser)


def _replay_arguments(args: Args) -> dict[str, Any]:
    target_token_file = None
    if args.is_key_of_context:  # the server of --from-url must not get this key
        target_token_file, args.token_file = args.token_file, None
    return {**pipeline.own(args), "target_token_file": target_token_file}


def _seq(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seq; use a number from 1 up")
    return int(text)


# --- rollup


DECLARED = ("topic", "into", "table", "window", "slide", "time", "watermark", "where", "by", "select", "sql", "tag")


def _rollup(commands: Subparsers) -> None:
    text = "compute windowed aggregates of a topic, each window written once"
    parser = pipeline.add(commands, "rollup", text, arguments=_rollup_arguments, extra="spark")
    add_address(parser)
    parser.add_argument("--file", metavar="TOML", help="file with the options below; options on the command line win")
    parser.add_argument("--topic", metavar="T", help="topic to aggregate")
    parser.add_argument("--into", metavar="T2", help="topic for the results")
    parser.add_argument("--table", metavar="DIR", help=f"{TABLE} for the results")
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
    parser.add_argument("--lake", metavar="DIR", help=OLD_RECORDS)
    pipeline.add_follow(parser, every_s=5.0)
    pipeline.add_positions(parser)


def _rollup_arguments(args: Args) -> dict[str, Any]:
    """Return the declaration of the file, overridden by the options. Raise `BadUsage` if it is invalid."""
    import msgspec

    from topics.spark.failures import BadUsage
    from topics.spark.pipelines.windows import Declaration

    options = pipeline.own(args)
    given = {name: value for name in DECLARED if (value := options.pop(name)) is not None}
    file = options.pop("file")
    try:
        said: dict[str, Any] = {} if file is None else msgspec.toml.decode(Path(file).read_bytes())
        return {**options, "declaration": msgspec.convert(said | given, Declaration)}
    except OSError as error:
        raise BadUsage(f"{file}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadUsage(f"{file or 'rollup'}: {error}") from None
