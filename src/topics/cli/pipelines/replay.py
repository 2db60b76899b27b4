"""`topics pipeline replay`: write records of a lake, a data directory or a server to a topic again."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport

EPILOG = """\
The same command is the same replay: if you run it again, it continues where it stopped and replays no record twice. To
replay the same records again, use --name. Each record has its origin in its meta, under _topics_replay.

examples:
  topics pipeline replay --lake /lake --topic orders --url http://127.0.0.1:4000 --into orders.again
  topics pipeline replay --lake /lake --topic orders --into rerun --where "data.total > 1000" --rate 500
  topics pipeline replay --path /backup --topic orders --into rescued --since 2025-05-28T00:00:00Z
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = pipeline.add(
        subparsers, "replay", execute, "write records of a lake, a directory or a topic to a topic again", epilog=EPILOG
    )
    parser.add_argument(
        "--lake", metavar="DIR", help="from this lake; with --from-url, from lake and server as one history"
    )
    parser.add_argument("--path", metavar="DIR", help="from the data directory of a stopped server, or a backup")
    parser.add_argument("--from-url", metavar="U", help="from this server")
    parser.add_argument("--from-token-file", metavar="FILE", help="file with the API key of that server")
    parser.add_argument("--topic", metavar="T", required=True, help="topic to replay")
    pipeline.add_url(parser, "server to write to")
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


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.replay import replay

    options = pipeline.shared(args)
    target_token_file = None
    if args.is_key_of_context:  # the server of --from-url must not get this key
        target_token_file, options["token_file"] = options["token_file"], None
    return replay(
        url=args.url,
        topic=args.topic,
        into=args.into,
        lake=args.lake,
        path=args.path,
        source_url=args.from_url,
        where=args.where,
        from_seq=args.from_seq,
        to_seq=args.to_seq,
        since=args.since,
        until=args.until,
        tag=args.tag,
        rate=args.rate,
        node=args.node,
        name=args.name,
        allow_gaps=args.allow_gaps,
        source_token_file=args.from_token_file,
        target_token_file=target_token_file,
        positions_topic=args.positions,
        **options,
    )


def _seq(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seq; use a number from 1 up")
    return int(text)
