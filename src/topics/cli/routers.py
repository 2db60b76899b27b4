"""`topics router …`: copy the records of one topic into another."""

from __future__ import annotations

from topics.cli.command import Args, Call, Command, group, removal
from topics.cli.connect import get, post, put
from topics.cli.options import FILTERS, filter_text, option
from topics.cli.output.screen import Columns, Styled, highlighted
from topics.cli.output.units import count, size
from topics.client.call import Request, filter_of, given, router_path
from topics.errors import Code, TopicsError
from topics.plurals import counted

ROUTER = option("ROUTER", "name of the router", completes="routers")
COLUMNS: Columns = {
    "router": lambda row: Styled(row["router"], "bold"),
    "from": lambda row: row["source"],
    "to": lambda row: row["dest"],
    "filter": lambda row: filter_text(row["filter"]) if row["filter"] else "all",
    "lag>": lambda row: highlighted(row["lag"], "yellow"),
    "copied>": lambda row: count(row["forwarded_total"]),
    "guarantee": lambda row: row["guarantee"].replace("_", " "),
    "problem": lambda row: Styled(row["last_error"] or "", "red"),
}


@Command(
    "ls",
    "list routers with their lag",
    (
        option("[PREFIX]", "only names that begin so", dest="router", completes="routers"),
        option("--source TOPIC", "only routers from this topic"),
        option("--dest TOPIC", "only routers to this topic"),
    ),
    request=lambda args: get("/v0/routers", prefix=args.router, source=args.source, dest=args.dest),
    examples="  topics router ls\n  topics router ls --source orders | jq .lag\n",
)
def ls(call: Call) -> None:
    """List the routers, each with its filter, which the list of the server leaves out."""
    rows = []
    for row in call.server.rows(call.request(call.args).path, "routers"):
        try:
            found = call.server.json(get(router_path(row["router"])))
        except TopicsError as error:
            if error.code is not Code.ROUTER_NOT_FOUND:  # removed since it was listed
                raise
        else:
            rows.append({**row, "filter": found["filter"]})
    empty = "no routers; `topics router create NAME --from TOPIC --to TOPIC` creates one"
    call.screen.rows(rows, COLUMNS, empty=empty)


def _create(args: Args) -> Request:
    body = {
        "source": args.source, "dest": args.dest,
        "preserve_node": not args.drop_node, "preserve_tag": not args.drop_tag,
        "allow_cycle": args.allow_cycle, "guarantee": "exactly_once" if args.exactly_once else "at_least_once",
        **given(filter=filter_of(args.tag, args.where, args.grep)),
        **given(from_seq=None if args.start is None else max(args.start - 1, 0)),
    }  # fmt: skip
    return put(router_path(args.router), body)


@Command(
    "create",
    "create a router, or change it",
    (
        ROUTER,
        option("--from TOPIC", "topic to copy from", dest="source", required=True, completes="topics"),
        option("--to TOPIC", "topic to copy to", dest="dest", required=True, completes="topics"),
        *FILTERS,
        option("--start SEQ", "first seq to copy [new records only]"),
        option("--exactly-once", "stamp each copy, so that none is made twice"),
        option("--allow-cycle", "allow a router that closes a cycle"),
        option("--drop-node", "copies have no node"),
        option("--drop-tag", "copies have no tag"),
    ),
    request=_create,
    examples="  topics router create audit --from orders --to orders-audit\n"
    "  topics router create eu --from orders --to orders-eu --tag 'eu:*' --start 1\n",
)
def create(call: Call) -> None:
    answer = call.ask()
    start = call.args.start or 0
    if answer["created"] and start > answer["cursor"] + 1:
        # The server starts at the head, because a router has no position after it.
        note = f"{start:,} is after the head, {answer['cursor']:,}: the next record is copied first"
        call.screen.note(note, "yellow")
    verb = "created" if answer["created"] else "updated"
    what = f" where {filter_text(answer['filter'])}" if answer["filter"] else ""
    text = f"{verb} {answer['router']}: {answer['source']} → {answer['dest']}{what}, lag {answer['lag']:,}"
    call.screen.result(answer, text)


rm = removal(
    "router", "remove a router; its copies stay", ROUTER,
    path=lambda args: router_path(args.router),
    question=lambda args, found: f"remove {args.router} ({found['source']} → {found['dest']})? Its copies stay.",
    examples="  topics router rm eu\n",
)  # fmt: skip


preview = Command(
    "preview",
    "count what a router would copy of the stored records",
    (
        option("ROUTER", "an existing router, or any name with --from", completes="routers"),
        option("--from TOPIC", "topic to copy from [that of the router]", dest="source", completes="topics"),
        *FILTERS,
    ),
    request=lambda args: post(
        router_path(args.router, "preview"),
        given(source=args.source, filter=filter_of(args.tag, args.where, args.grep)),
    ),
    examples="  topics router preview eu --from orders --tag 'eu:*'\n",
    says=lambda args, answer: (
        f"would copy {counted(answer['matched'], 'record')} ({size(answer['bytes'])}) "
        f"of {answer['scanned']:,} in {answer['source']}"
    ),
)

register = group("router", ls, create, rm, preview)
