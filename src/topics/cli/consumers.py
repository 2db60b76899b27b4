"""`topics consumer …`: named consumers, their positions and their lag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from topics.cli.command import Args, Call, Command, Subparsers, add_group, topic_argument, yes_argument
from topics.cli.connect.request import Request, get, given, topic_path
from topics.cli.output.ask import confirm
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND, usage
from topics.cli.output.screen import Cell, Styled
from topics.cli.output.units import count, duration, parse_count, parse_duration, parse_size
from topics.clock import SystemClock


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    text = "list, set and remove the positions of named consumers"
    commands = (LS, SET, RM)
    add_group(subparsers, "consumer", text, commands, examples=EXAMPLES)


EXAMPLES = """\
  topics consumer set orders billing --seq 0
  topics consumer ls orders
  topics consumer rm orders billing
"""


def _path(args: Args) -> str:
    return topic_path(args.topic, f"consumers/{quote(args.consumer, safe='')}")


def _arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser)
    parser.add_argument("consumer", metavar="CONSUMER", help="name of the consumer")


# --- ls


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, nargs="?", help="only consumers of this topic")


def _list(args: Args) -> Request:
    return get(topic_path(args.topic, "consumers") if args.topic else "/v0/consumers")


def _show_list(call: Call, rows: list[Mapping[str, Any]]) -> None:
    if rows:
        columns = ("topic", "consumer", "position>", "head>", "lag>", "behind>", "lost>", "updated", "keeps records")
        call.screen.table(columns, [_cells(row) for row in rows])
    else:
        call.screen.note("no consumers; `topics consumer set TOPIC NAME --seq N` adds one")


def _cells(row: Mapping[str, Any]) -> list[Cell]:
    lag, lost = row["lag_records"], (row["lost"] or {}).get("records", 0)
    age_ms = max(SystemClock().now_ms() - row["updated_ms"], 0)
    return [
        row["topic"],
        Styled(row["consumer"], "bold"),
        count(row["seq"]),
        count(row["head_seq"]),
        Styled(count(lag), "yellow" if lag else "dim"),
        duration(row["lag_ms"]) if lag else "",
        Styled(count(lost), "red") if lost else "",
        f"{duration(age_ms)} ago",
        "yes" if row["hold"] else "",
    ]


LS = Command(
    name="ls",
    help="list consumers with their lag",
    arguments=_ls_arguments,
    request=_list,
    show=_show_list,
    rows="consumers",
    examples="  topics consumer ls\n  topics consumer ls orders | jq .lag_records\n",
)


# --- set


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--seq", metavar="SEQ", type=parse_count, help="last seq that is processed; 0 reads everything")
    where.add_argument("--to-head", action="store_true", help="skip to the head: read only new records")
    parser.add_argument("--expire", metavar="DURATION", type=parse_duration, help="forget it after so long without use")
    parser.add_argument("--hold", choices=("true", "false"), help="keep unread records past their TTL and caps")
    parser.add_argument("--max-hold-bytes", metavar="SIZE", type=parse_size, help="most bytes that --hold keeps")


def _set(args: Args, seq: int | None = None) -> Request:
    hold = None if args.hold is None else args.hold == "true"
    chosen = args.seq if seq is None else seq
    body = given(seq=chosen, expire_ms=args.expire, hold=hold, max_hold_bytes=args.max_hold_bytes)
    if not body and not args.to_head:
        raise usage("nothing to set: pass --seq, --to-head, --expire or --hold")
    return Request(method="PUT", path=_path(args), body=body)


def _run_set(call: Call) -> int:
    head = None
    if call.args.to_head:
        head = call.server.json(get(topic_path(call.args.topic, touch=False)))["head_seq"]
    answer = call.server.json(_set(call.args, head))
    answer.pop("performance", None)
    if call.screen.is_human:
        verb = "created" if answer["created"] else "set"
        lag = answer["head_seq"] - answer["seq"]
        call.screen.line(
            f"{verb} {answer['consumer']} of {answer['topic']} at {answer['seq']:,}, {lag:,} before the head"
        )
    else:
        call.screen.json(answer)
    return EXIT_DONE


SET = Command(
    name="set",
    help="create a consumer, or move it",
    arguments=_set_arguments,
    request=_set,
    run=_run_set,
    examples="  topics consumer set orders billing --seq 0\n  topics consumer set orders billing --to-head\n",
)


# --- rm


def _rm_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    yes_argument(parser)


def _rm(args: Args) -> Request:
    return Request(method="DELETE", path=_path(args))


def _run_rm(call: Call) -> int:
    if not call.args.yes:
        found = call.server.json(get(_path(call.args)))
        confirm(f"remove {call.args.consumer} of {call.args.topic}, which stands at {found['seq']:,}?", yes=False)
    answer = call.server.json(_rm(call.args))
    answer.pop("performance", None)
    if call.screen.is_human:
        call.screen.line(
            f"removed {call.args.consumer}" if answer["deleted"] else f"{call.args.consumer} does not exist"
        )
    else:
        call.screen.json(answer)
    return EXIT_DONE if answer["deleted"] else EXIT_NOT_FOUND


RM = Command(
    name="rm",
    help="remove a consumer",
    arguments=_rm_arguments,
    request=_rm,
    run=_run_rm,
    examples="  topics consumer rm orders billing\n",
)
