"""`topics consumer …`: named consumers, their positions and their lag."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from topics.cli.command import Args, Call, Command, add_group, topic_argument
from topics.cli.connect.server import delete, get, put
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND, usage
from topics.cli.output.screen import Cell, Styled, confirm
from topics.cli.output.units import count, duration, parse_count, parse_duration, parse_size
from topics.cli.tree import Subparsers
from topics.client.call import Request, consumer_path, given, topic_path
from topics.clock import SystemClock


def register(subparsers: Subparsers) -> None:
    add_group(subparsers, "consumer", (LS, SET, RM), examples=EXAMPLES)


EXAMPLES = """\
  topics consumer set orders billing --seq 0
  topics consumer ls orders
  topics consumer rm orders billing
"""


def _arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser)
    parser.add_argument("consumer", metavar="CONSUMER", help="name of the consumer")


# --- ls


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, nargs="?", help="only consumers of this topic")


def _list(args: Args) -> Request:
    return get(topic_path(args.topic, "consumers") if args.topic else "/v0/consumers")


def _run_ls(call: Call) -> int:
    columns = ("topic", "consumer", "position>", "head>", "lag>", "behind>", "lost>", "updated", "keeps records")
    rows = list(call.server.rows(_list(call.args).path, "consumers"))
    call.screen.rows(rows, columns, _cells, empty="no consumers; `topics consumer set TOPIC NAME --seq N` adds one")
    return EXIT_DONE


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
    run=_run_ls,
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
    return put(consumer_path(args.topic, args.consumer), body)


def _run_set(call: Call) -> int:
    head = None
    if call.args.to_head:
        head = call.server.json(get(topic_path(call.args.topic, touch=False)))["head_seq"]
    answer = call.server.json(_set(call.args, head))
    verb, lag = "created" if answer["created"] else "set", answer["head_seq"] - answer["seq"]
    text = f"{verb} {answer['consumer']} of {answer['topic']} at {answer['seq']:,}, {lag:,} before the head"
    call.screen.result(answer, text)
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


def _rm(args: Args) -> Request:
    return delete(consumer_path(args.topic, args.consumer))


def _run_rm(call: Call) -> int:
    topic, name = call.args.topic, call.args.consumer
    if not call.args.yes:
        found = call.server.json(get(consumer_path(topic, name)))
        confirm(f"remove {name} of {topic}, which is at {found['seq']:,}?")
    answer = call.server.json(_rm(call.args))
    call.screen.result(answer, f"removed {name}" if answer["deleted"] else f"{name} does not exist")
    return EXIT_DONE if answer["deleted"] else EXIT_NOT_FOUND


RM = Command(
    name="rm",
    help="remove a consumer",
    arguments=_arguments,
    request=_rm,
    asks=True,
    run=_run_rm,
    examples="  topics consumer rm orders billing\n",
)
