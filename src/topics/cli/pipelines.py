"""The commands of `topics pipeline`: their options, which have the names of the arguments of the pipeline functions."""

from __future__ import annotations

import argparse
from typing import Any

from topics.cli import pipeline
from topics.cli.connect import add_address
from topics.cli.options import Row, add_group, add_parser, one_of, option, section
from topics.cli.pipeline import FOLLOW, LIMIT, POSITIONS, SPARK, Pipeline, follow
from topics.cli.tree import Subparsers

Args = argparse.Namespace

TABLE = "Delta table, a directory or a URL that begins with s3://, gs:// or az://,"
LAKE = "the lake: a directory, or a URL that begins with s3://, gs:// or az://"
OLD_RECORDS = option("--lake DIR", "lake with records that the topic no longer has")


def register(subparsers: Subparsers) -> None:
    commands = add_group(add_parser(subparsers, "pipeline"), "pipelines", "PIPELINE")
    for one in (ARCHIVE, AUDIT, COMPACT, ERASE, MAINTAIN, MIRROR, REPLAY, ROLLUP):
        one.register(commands)


def _topics(help: str) -> Row:
    return option("--topic T", help, dest="topics", action="append", default=[])


# --- archive


ARCHIVE = Pipeline(
    "archive",
    "copy topics to a lake of Delta tables, each record once",
    (
        add_address,
        SPARK,
        section(
            "topics, at least one of these",
            _topics("a topic; repeatable"),
            option("--prefix P", "all topics with this name prefix"),
            option("--pattern RE", "all topics whose whole name matches this regular expression"),
        ),
        option("--lake DIR", f"{LAKE}; created if missing", required=True),
        option(
            "--columns LIST",
            "fields of data that get typed columns, such as 'sku STRING, qty INT'; default: those of a topic's schema",
        ),
        option("--expect SQL", "condition that records should meet, such as 'value:qty::int > 0'; counts the others"),
        one_of(
            option("--reject-to TOPIC", "copy records that do not meet --expect to this topic"),
            option("--strict", "fail before records are archived that do not meet --expect"),
        ),
        follow(5.0),
        LIMIT,
        option("--trim", "delete records from the topics once the lake has confirmed them"),
        option(
            "--merge N", "merge this many small files into one [%(default)d]; 0 disables merging",
            dest="merge_files", type=int, default=8,
        ),
        option(
            "--new-lake",
            "continue with a lake that has less than the server expects; missing records become a gap",
        ),
    ),
)  # fmt: skip

AUDIT = Pipeline(
    "audit",
    "verify that every seq is live, deleted, archived or in a recorded gap",
    (
        add_address,
        SPARK,
        option("--lake DIR", "lake to compare with", required=True),
        LIMIT,
        _topics("only this topic; repeatable. Default: all topics of server and lake, except sys: topics"),
    ),
    epilog="Exit status: 0 if every seq is explained and lake and server agree, else 1.",
)

COMPACT = Pipeline(
    "compact",
    "keep the latest record of every tag, or of every value of an expression, as a Delta table or as a topic",
    (
        add_address,
        option("--topic T", "topic to compact", required=True),
        one_of(
            option("--into T2", "topic with one record per key"),
            option("--table DIR", f"{TABLE} with one row per key"),
            required=True,
        ),
        option("--by SQL", "key expression, such as value:user.id::string [%(default)s]", default="tag"),
        option("--null-removes", "a record whose data is null removes its key"),
        option("--full", "start again at the first seq"),
        OLD_RECORDS,
        follow(10.0),
        LIMIT,
        POSITIONS,
    ),
    extra="spark",
)


ERASE = Pipeline(
    "erase",
    "delete the records of a tag from topics, router copies and a lake",
    (
        add_address,
        SPARK,
        option("--match TAG", "a tag, or a tag prefix with *: user-42:*", required=True),
        option("--lake DIR", "also erase from this lake; its files are rewritten"),
        LIMIT,
        section(
            "topics [all]",
            _topics("only this topic and its router copies; repeatable"),
            option("--prefix P", "only topics with this name prefix, and their router copies"),
        ),
    ),
    epilog="Prints a receipt with the number of deleted records per place. Exit status: 1 if copies\n"
    "remain that have neither a tag nor an origin.",
)


# --- maintain and mirror


MAINTAIN = Pipeline(
    "maintain",
    "merge small files of a lake, and remove files that no version needs",
    (
        SPARK,
        option("--lake DIR", LAKE, required=True),
        _topics("only this topic; repeatable. Default: all topics"),
        option(
            "--merge N", "merge at least this many small files into one [%(default)d]",
            dest="merge_files", type=int, default=2,
        ),
        option(
            "--retention HOURS",
            "keep replaced and uncommitted files this long, for readers and running archives [%(default)d]",
            dest="retention_hours", type=int, default=168,
        ),
    ),
)  # fmt: skip


def _add_side(side: str, word: str) -> Row:
    rows = (
        option(f"--{side}-name NAME", "name of that server in copies", dest=f"{word}_name"),
        option(f"--{side}-token-file FILE", "file with the API key of that server", dest=f"{word}_token_file"),
    )  # fmt: skip
    return lambda to: [row(to) for row in rows]


MIRROR = Pipeline(
    "mirror",
    "copy topics to another server, or in both directions, each record once and without echoes",
    (
        option("--from URL", "server to copy from", dest="source", required=True),
        option("--to URL", "server to copy to", dest="target", required=True),
        section(
            "topics, at least one of these",
            option("--prefix P", "all topics with this name prefix; '' for all"),
            _topics("a topic; repeatable"),
        ),
        option("--both-ways", "also copy in the other direction"),
        FOLLOW,
        option("--only-local", "skip records that came from a third server; for servers that are all linked"),
        option("--lake DIR", "lake of --from, for records that the server no longer has"),
        option("--skip-trimmed", "continue without records that archive --trim deleted before they were copied"),
        _add_side("from", "source"),
        _add_side("to", "target"),
        LIMIT,
        POSITIONS,
        SPARK,
    ),
)


# --- replay


REPLAY_EPILOG = """\
The same command is the same replay: if you run it again, it continues where it stopped and replays no record twice. To
replay the same records again, use --name. Each record has its origin in its meta, under _topics_replay.

examples:
  topics pipeline replay --lake /lake --topic orders --url http://127.0.0.1:4000 --into orders.again
  topics pipeline replay --lake /lake --topic orders --into rerun --where "data.total > 1000" --rate 500
  topics pipeline replay --path /backup --topic orders --into rescued --since 2025-05-28T00:00:00Z
"""


def _replay_arguments(args: Args) -> dict[str, Any]:
    target_token_file = None
    if args.is_key_of_context:  # the server of --from-url must not get this key
        target_token_file, args.token_file = args.token_file, None
    return {**pipeline.own(args), "target_token_file": target_token_file}


def _seq(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seq; use a number from 1 up")
    return int(text)


REPLAY = Pipeline(
    "replay",
    "write records of a lake, a directory or a topic to a topic again",
    (
        option("--lake DIR", "from this lake; with --from-url, from lake and server as one history"),
        option("--path DIR", "from the data directory of a stopped server, or a backup"),
        option("--from-url U", "from this server", dest="source_url"),
        option("--from-token-file FILE", "file with the API key of that server", dest="source_token_file"),
        option("--topic T", "topic to replay", required=True),
        lambda to: add_address(to, "server to write to"),
        option("--into T2", "topic to write to", required=True),
        option("--where SQL", "only matching records, such as \"data.qty > 1 AND tag = 'web'\""),
        option("--from-seq N", "first seq", type=_seq),
        option("--to-seq N", "last seq", type=_seq),
        option("--since TIME", "from this time on: ISO 8601 or epoch milliseconds"),
        option("--until TIME", "before this time"),
        option("--tag TAG", "only this tag, or with a trailing *, tags with this prefix"),
        option("--rate N", "maximum records per second", type=float),
        option("--max-bytes-per-second N", "write at most this much to the server", type=int),
        option("--node NODE", "node of the replayed records, instead of the original one"),
        option("--name NAME", "name of the replay; a new name is a new replay"),
        option("--allow-gaps", "continue at gaps of the source, and write a record for each"),
        POSITIONS,
        SPARK,
    ),
    arguments=_replay_arguments,
    epilog=REPLAY_EPILOG,
)


# --- rollup


def _rollup_arguments(args: Args) -> dict[str, Any]:
    """Return the options with those of the declaration as one. Raise `BadUsage` if it is invalid."""
    import msgspec

    from topics.spark.failures import BadUsage
    from topics.spark.pipelines.windows import Declaration

    options = pipeline.own(args)
    given = {name: value for name in Declaration.__struct_fields__ if (value := options.pop(name)) is not None}
    try:
        return {**options, "declaration": msgspec.convert(given, Declaration)}
    except msgspec.ValidationError as error:
        raise BadUsage(f"rollup: {error}") from None


ROLLUP = Pipeline(
    "rollup",
    "compute windowed aggregates of a topic, each window written once",
    (
        add_address,
        option("--topic T", "topic to aggregate", required=True),
        option("--into T2", "topic for the results"),
        option("--table DIR", f"{TABLE} for the results"),
        option("--window LENGTH", "length of a window, such as '1 hour'", required=True),
        option("--slide LENGTH", "step between overlapping windows"),
        option("--time SQL", "event time [ts, the commit time]"),
        option("--watermark LENGTH", "allowed lateness of a record [0 seconds]"),
        option("--where SQL", "only matching records"),
        option("--by SQL", "group by this expression; repeatable", action="append"),
        option("--select SQL", "an aggregate with its name; repeatable [count(*) AS count]", action="append"),
        option("--sql SELECT", "a query FROM records, instead of --where, --by and --select"),
        option("--tag SQL", "tag of the output records, from columns of the result"),
        option("--full", "start again at the first seq; windows are written again"),
        OLD_RECORDS,
        follow(5.0),
        LIMIT,
        POSITIONS,
    ),
    arguments=_rollup_arguments,
    extra="spark",
)
