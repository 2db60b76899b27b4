"""`topics router …`: copy the records of one topic into another."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from topics.cli.command import Args, Call, Command, add_group, topic_argument
from topics.cli.connect.server import delete, get, post, put, tag_match
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND
from topics.cli.output.screen import Cell, Styled, confirm
from topics.cli.output.units import count, parse_count, size
from topics.cli.tree import Subparsers
from topics.client.call import Request, given, router_path
from topics.errors import Code, TopicsError
from topics.plurals import counted


def register(subparsers: Subparsers) -> None:
    add_group(subparsers, "router", (LS, CREATE, RM, PREVIEW), examples=EXAMPLES)


EXAMPLES = """\
  topics router create eu --from orders --to orders-eu --tag 'eu:*' --start 1
  topics router ls
  topics router rm eu
"""


def _name(parser: argparse.ArgumentParser, **options: Any) -> None:
    action = parser.add_argument("router", **{"metavar": "ROUTER", "help": "name of the router", **options})
    action.completes = "routers"  # type: ignore[attr-defined]


# --- ls


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    _name(parser, nargs="?", metavar="PREFIX", help="only names that begin so")
    parser.add_argument("--source", metavar="TOPIC", help="only routers from this topic")
    parser.add_argument("--dest", metavar="TOPIC", help="only routers to this topic")


def _list(args: Args) -> Request:
    return get("/v0/routers", prefix=args.router, source=args.source, dest=args.dest)


def _run_ls(call: Call) -> int:
    """List the routers, each with its filter, which the list of the server leaves out."""
    rows = []
    for row in call.server.rows(_list(call.args).path, "routers"):
        try:
            found = call.server.json(get(router_path(row["router"])))
        except TopicsError as error:
            if error.code is not Code.ROUTER_NOT_FOUND:  # removed since it was listed
                raise
        else:
            rows.append({**row, "filter": found["filter"]})
    columns = ("router", "from", "to", "tags", "lag>", "copied>", "guarantee", "problem")
    empty = "no routers; `topics router create NAME --from TOPIC --to TOPIC` creates one"
    call.screen.rows(rows, columns, _cells, empty=empty)
    return EXIT_DONE


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Styled(row["router"], "bold"),
        row["source"],
        row["dest"],
        row["filter"][2] if row["filter"] else "all",
        Styled(count(row["lag"]), "yellow" if row["lag"] else "dim"),
        count(row["forwarded_total"]),
        row["guarantee"].replace("_", " "),
        Styled(row["last_error"] or "", "red"),
    ]


LS = Command(
    name="ls",
    help="list routers with their lag",
    arguments=_ls_arguments,
    request=_list,
    run=_run_ls,
    examples="  topics router ls\n  topics router ls --source orders | jq .lag\n",
)


# --- create


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    _name(parser)
    topic_argument(parser, "--from", dest="source", metavar="TOPIC", required=True, help="topic to copy from")
    topic_argument(parser, "--to", dest="dest", metavar="TOPIC", required=True, help="topic to copy to")
    parser.add_argument("--tag", metavar="TAG", help="copy only this tag; a trailing * matches the beginning")
    parser.add_argument("--start", metavar="SEQ", type=parse_count, help="first seq to copy [new records only]")
    parser.add_argument("--exactly-once", action="store_true", help="stamp each copy, so that none is made twice")
    parser.add_argument("--allow-cycle", action="store_true", help="allow a router that closes a cycle")
    parser.add_argument("--drop-node", action="store_true", help="copies have no node")
    parser.add_argument("--drop-tag", action="store_true", help="copies have no tag")


def _create(args: Args) -> Request:
    body = {
        "source": args.source, "dest": args.dest,
        "preserve_node": not args.drop_node, "preserve_tag": not args.drop_tag,
        "allow_cycle": args.allow_cycle, "guarantee": "exactly_once" if args.exactly_once else "at_least_once",
        **given(
            filter=tag_match(args.tag),
            from_seq=None if args.start is None else max(args.start - 1, 0),
        ),
    }  # fmt: skip
    return put(router_path(args.router), body)


def _run_create(call: Call) -> int:
    answer = call.server.json(_create(call.args))
    start = call.args.start or 0
    if answer["created"] and start > answer["cursor"] + 1:
        # The server starts at the head, because a router has no position after it.
        call.screen.note(
            f"{start:,} is after the head, {answer['cursor']:,}: the next record is copied first", "yellow"
        )
    verb = "created" if answer["created"] else "updated"
    what = f" where the tag matches {answer['filter'][2]}" if answer["filter"] else ""
    text = f"{verb} {answer['router']}: {answer['source']} → {answer['dest']}{what}, lag {answer['lag']:,}"
    call.screen.result(answer, text)
    return EXIT_DONE


CREATE = Command(
    name="create",
    help="create a router, or change it",
    arguments=_create_arguments,
    request=_create,
    run=_run_create,
    examples="""\
  topics router create audit --from orders --to orders-audit
  topics router create eu --from orders --to orders-eu --tag 'eu:*' --start 1
""",
)


# --- rm


def _rm(args: Args) -> Request:
    return delete(router_path(args.router))


def _run_rm(call: Call) -> int:
    name = call.args.router
    if not call.args.yes:
        found = call.server.json(get(router_path(name)))
        confirm(f"remove {name} ({found['source']} → {found['dest']})? Its copies stay.")
    answer = call.server.json(_rm(call.args))
    call.screen.result(answer, f"removed {name}" if answer["deleted"] else f"{name} does not exist")
    return EXIT_DONE if answer["deleted"] else EXIT_NOT_FOUND


RM = Command(
    name="rm",
    help="remove a router; its copies stay",
    arguments=_name,
    request=_rm,
    asks=True,
    run=_run_rm,
    examples="  topics router rm eu\n",
)


# --- preview


def _preview_arguments(parser: argparse.ArgumentParser) -> None:
    _name(parser, help="an existing router, or any name with --from")
    topic_argument(parser, "--from", dest="source", metavar="TOPIC", help="topic to copy from [that of the router]")
    parser.add_argument("--tag", metavar="TAG", help="copy only this tag [the filter of the router]")


def _preview(args: Args) -> Request:
    body = given(source=args.source, filter=tag_match(args.tag))
    return post(router_path(args.router, "preview"), body)


def _show_preview(call: Call, answer: Mapping[str, Any]) -> None:
    call.screen.line(
        f"would copy {counted(answer['matched'], 'record')} ({size(answer['bytes'])}) of {answer['scanned']:,} "
        f"in {answer['source']}"
    )


PREVIEW = Command(
    name="preview",
    help="count what a router would copy of the stored records",
    arguments=_preview_arguments,
    request=_preview,
    show=_show_preview,
    examples="  topics router preview eu --from orders --tag 'eu:*'\n",
)
