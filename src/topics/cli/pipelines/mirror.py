"""`topics pipeline mirror`: copy topics to another server, or in both directions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "copy topics to another server, or in both directions, each record once and without echoes"
    parser = pipeline.add(subparsers, "mirror", execute, text)
    parser.add_argument("--from", dest="source", metavar="URL", required=True, help="server to copy from")
    parser.add_argument("--to", dest="target", metavar="URL", required=True, help="server to copy to")
    which = parser.add_argument_group("topics, at least one of these")
    which.add_argument("--prefix", metavar="P", help="all topics with this name prefix; '' for all")
    which.add_argument("--topic", metavar="T", action="append", help="a topic; repeatable")
    parser.add_argument("--both-ways", action="store_true", help="also copy in the other direction")
    parser.add_argument("--follow", action="store_true", help="keep running until SIGINT or SIGTERM")
    parser.add_argument(
        "--only-local",
        action="store_true",
        help="skip records that came from a third server; for servers that are all linked",
    )
    parser.add_argument("--lake", metavar="DIR", help="lake of --from, for records that the server no longer has")
    parser.add_argument(
        "--skip-trimmed",
        action="store_true",
        help="continue without records that archive --trim deleted before they were copied",
    )
    for side, word in (("from", "source"), ("to", "target")):
        parser.add_argument(f"--{side}-name", metavar="NAME", dest=f"{word}_name", help="name of that server in copies")
        parser.add_argument(
            f"--{side}-node", metavar="NODE", dest=f"{word}_nodes", action="append", default=[],
            help="a node that writes on that server only; the node filter of the other server skips its copies",
        )  # fmt: skip
        parser.add_argument(
            f"--{side}-token-file",
            metavar="FILE",
            dest=f"{word}_token_file",
            help="file with the API key of that server",
        )
    pipeline.add_positions(parser)
    pipeline.add_spark(parser)


def execute(args: argparse.Namespace) -> RunReport:
    from topics.spark.pipelines.mirror.driver import mirror

    return mirror(
        source=args.source,
        target=args.target,
        prefix=args.prefix,
        topics=args.topic or (),
        both_ways=args.both_ways,
        follow=args.follow,
        only_local=args.only_local,
        lake=args.lake,
        skip_trimmed=args.skip_trimmed,
        source_name=args.source_name,
        target_name=args.target_name,
        source_nodes=args.source_nodes,
        target_nodes=args.target_nodes,
        source_token_file=args.source_token_file,
        target_token_file=args.target_token_file,
        positions_topic=args.positions,
        **pipeline.shared(args),
    )
