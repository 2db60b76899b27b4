"""`topics pipeline mirror`: topics of one server on another, or both ways."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from topics.cli import pipeline

if TYPE_CHECKING:
    from topics.spark.pipelines.run.report import RunReport


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "copy topics from one server to another, or both ways, each record once and no echo"
    parser = pipeline.add(subparsers, "mirror", execute, text)
    parser.add_argument("--from", dest="source", metavar="URL", required=True, help="server to copy from")
    parser.add_argument("--to", dest="target", metavar="URL", required=True, help="server to copy to")
    which = parser.add_argument_group("which topics, one of them at least")
    which.add_argument("--prefix", metavar="P", help="topics whose names begin like this; '' for all")
    which.add_argument("--topic", metavar="T", action="append", help="this topic; may be given several times")
    parser.add_argument("--both-ways", action="store_true", help="copy in the other direction, too")
    parser.add_argument("--follow", action="store_true", help="go on until SIGINT or SIGTERM")
    parser.add_argument(
        "--only-local",
        action="store_true",
        help="leave out what came from a third server: for three that are all linked",
    )
    parser.add_argument("--lake", metavar="DIR", help="lake of --from, for what that server has no more")
    parser.add_argument(
        "--skip-trimmed",
        action="store_true",
        help="go on without what archive --trim took away before it was copied",
    )
    for side, word in (("from", "source"), ("to", "target")):
        parser.add_argument(f"--{side}-name", metavar="NAME", dest=f"{word}_name", help="name of that server in copies")
        parser.add_argument(
            f"--{side}-node", metavar="NODE", dest=f"{word}_nodes", action="append", default=[],
            help="a node that writes on that server only; its copies are left out by the other server's node filter",
        )  # fmt: skip
        parser.add_argument(
            f"--{side}-token-file", metavar="FILE", dest=f"{word}_token_file", help="the key for that server alone"
        )
    pipeline.add_positions(parser)


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
