"""`topics consumer …`: named consumers, their positions and their lag."""

from __future__ import annotations

from topics.cli.command import Args, Call, Command, group, removal
from topics.cli.connect import get, put
from topics.cli.options import TOPIC, one_of, option
from topics.cli.output.failures import usage
from topics.cli.output.screen import Columns, Styled, highlighted
from topics.cli.output.units import count, duration
from topics.client.call import Request, consumer_path, given, topic_path
from topics.clock import SystemClock

CONSUMER = option("CONSUMER", "name of the consumer")
COLUMNS: Columns = {
    "topic": lambda row: row["topic"],
    "consumer": lambda row: Styled(row["consumer"], "bold"),
    "position>": lambda row: count(row["seq"]),
    "head>": lambda row: count(row["head_seq"]),
    "lag>": lambda row: highlighted(row["lag_records"], "yellow"),
    "behind>": lambda row: duration(row["lag_ms"]) if row["lag_records"] else "",
    "lost>": lambda row: Styled(count(row["lost"]["records"]), "red") if row["lost"] else "",
    "updated": lambda row: f"{duration(max(SystemClock().now_ms() - row['updated_ms'], 0))} ago",
    "keeps records": lambda row: "yes" if row["hold"] else "",
}


@Command(
    "ls",
    "list consumers with their lag",
    (option("[TOPIC]", "only consumers of this topic", completes="topics"),),
    request=lambda args: get(topic_path(args.topic, "consumers") if args.topic else "/v0/consumers"),
    examples="  topics consumer ls\n  topics consumer ls orders | jq .lag_records\n",
)
def ls(call: Call) -> None:
    rows = list(call.server.rows(call.request(call.args).path, "consumers"))
    call.screen.rows(rows, COLUMNS, empty="no consumers; `topics consumer set TOPIC NAME --seq N` adds one")


def _set(args: Args, seq: int | None = None) -> Request:
    hold = None if args.hold is None else args.hold == "true"
    chosen = args.seq if seq is None else seq
    body = given(seq=chosen, expire_ms=args.expire, hold=hold, max_hold_bytes=args.max_hold_bytes)
    if not body and not args.to_head:
        raise usage("nothing to set: pass --seq, --to-head, --expire or --hold")
    return put(consumer_path(args.topic, args.consumer), body)


@Command(
    "set",
    "create a consumer, or move it",
    (
        TOPIC,
        CONSUMER,
        one_of(
            option("--seq SEQ", "last seq that is processed; 0 reads everything"),
            option("--to-head", "skip to the head: read only new records"),
        ),
        option("--expire DURATION", "forget it after so long without use"),
        option("--hold", "keep unread records past their TTL and caps", choices=("true", "false")),
        option("--max-hold-bytes SIZE", "most bytes that --hold keeps"),
    ),
    request=_set,
    examples="  topics consumer set orders billing --seq 0\n  topics consumer set orders billing --to-head\n",
)
def set_position(call: Call) -> None:
    head = None
    if call.args.to_head:
        head = call.server.json(get(topic_path(call.args.topic, touch=False)))["head_seq"]
    answer = call.server.json(_set(call.args, head))
    verb, lag = "created" if answer["created"] else "set", answer["head_seq"] - answer["seq"]
    text = f"{verb} {answer['consumer']} of {answer['topic']} at {answer['seq']:,}, {lag:,} before the head"
    call.screen.result(answer, text)


rm = removal(
    "consumer", "remove a consumer", TOPIC, CONSUMER,
    path=lambda args: consumer_path(args.topic, args.consumer),
    question=lambda args, found: f"remove {args.consumer} of {args.topic}, which is at {found['seq']:,}?",
    examples="  topics consumer rm orders billing\n",
)  # fmt: skip

register = group("consumer", ls, set_position, rm)
