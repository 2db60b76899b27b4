"""`topics mcp`: offer a server to an AI agent, by the Model Context Protocol on standard input and output."""

from __future__ import annotations

import argparse
import os

from topics.cli import connect as targets
from topics.cli.options import add_parser, option
from topics.cli.output.failures import EXIT_DONE, Failure
from topics.cli.tree import Subparsers
from topics.installation import install_command, is_installed

DETAILS = (
    "An agent starts this command, and calls its tools: list and read topics, append, wait, claim and finish jobs, "
    "schedule, query. It has the rights of the key. Tools that delete need --destructive."
)
EXAMPLES = """\
  topics mcp --url https://topics.example --token-file agent.key
  claude mcp add topics -- topics mcp
"""


def register(subparsers: Subparsers) -> None:
    parser = add_parser(
        subparsers, "mcp", "",
        option("--destructive", "offer the tools that delete records, topics and schedules, too"),
        targets.add_options, details=DETAILS, examples=EXAMPLES,
    )  # fmt: skip
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    target = targets.resolve(args, os.environ)
    try:
        from topics.client import AsyncTopics
        from topics.mcp.tools import Tools, build
    except ImportError as error:  # also of an older version of the SDK
        raise Failure(f"topics mcp needs more packages: {error}", next_step=install_command("mcp")) from None
    topics = AsyncTopics(target.url, token=target.token, retry_for_s=20)
    sql = (lambda: (target.url, target.token)) if is_installed("duckdb") else None
    build(Tools(lambda: topics, sql=sql), destructive=args.destructive).run("stdio")
    return EXIT_DONE
