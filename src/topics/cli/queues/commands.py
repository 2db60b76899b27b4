"""`topics queue …`: the group, and the commands that send one request."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from topics.cli.command import Args, Call, Command, add_group, topic_argument
from topics.cli.connect.server import get, post
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND
from topics.cli.output.records import print_record
from topics.cli.output.screen import Cell, Styled
from topics.cli.output.units import count, duration, parse_duration, parse_positive, parse_seqs
from topics.cli.queues import dead, work
from topics.cli.queues.jobs import add_node, data_of, raw_jobs
from topics.cli.tree import Subparsers
from topics.client.call import Request, given, topic_path
from topics.clock import SystemClock
from topics.plurals import counted


def register(subparsers: Subparsers) -> None:
    commands = (LS, CLAIM, ACK, NACK, EXTEND, PEEK, dead.DEAD, dead.REDRIVE, work.WORK)
    add_group(subparsers, "queue", commands, examples=EXAMPLES)


EXAMPLES = """\
  topics create mail --type queue --max-deliveries 3 --dead-letter mail.dead
  topics queue work mail -- ./send-mail
  topics queue ls
  topics queue dead mail
"""


# --- ls


def _list(args: Args) -> Request:
    return get("/v0/topics", prefix=args.prefix or None)


def _run_ls(call: Call) -> int:
    names = [row["topic"] for row in call.server.rows(_list(call.args).path, "topics") if row["type"] == "queue"]
    rows = []
    for name in names:
        state = call.server.json(get(topic_path(name, touch=False)))
        config = state["config"]
        rows.append({"topic": name, **state["queue"], **{key: config[key] for key in _SHOWN}})
    columns = ("queue", "ready>", "in flight>", "delayed>", "dead ever>", "lease>", "deliveries>", "dead letters")
    empty = "no queues; `topics create NAME --type queue` creates one"
    call.screen.rows(rows, columns, _queue_cells, empty=empty)
    return EXIT_DONE


_SHOWN = ("lease_ms", "max_deliveries", "dead_letter")


def _queue_cells(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Styled(row["topic"], "bold"),
        Styled(count(row["ready"]), "green" if row["ready"] else "dim"),
        count(row["in_flight"]),
        count(row["delayed"]),
        Styled(count(row["dead_lettered"]), "red" if row["dead_lettered"] else "dim"),
        duration(row["lease_ms"]),
        count(row["max_deliveries"]) if row["max_deliveries"] else "any",
        row.get("dead_letter_error") or row["dead_letter"] or "none",
    ]


LS = Command(
    name="ls",
    help="list queues and their jobs",
    arguments=lambda parser: topic_argument(
        parser, "prefix", nargs="?", default="", metavar="PREFIX", help="only names that begin so"
    ),
    request=_list,
    run=_run_ls,
    details="`dead ever` counts all jobs that were moved to the dead letters since the queue was created, also those "
    "that were moved back; `topics queue dead` lists the present ones.",
    examples="  topics queue ls\n",
)


# --- claim


def _claim_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, "queue", help="the queue")
    parser.add_argument("-n", "--max", metavar="N", type=parse_positive, default=1, help="most jobs to claim [1]")
    parser.add_argument("--lease", metavar="DURATION", type=parse_duration, help="how long to hold them [the queue's]")
    parser.add_argument("--wait", metavar="DURATION", type=parse_duration, default=0, help="wait for a job, up to 30s")
    add_node(parser)


def _claim(args: Args) -> Request:
    body = {"node": args.node, "max": args.max, "wait_ms": args.wait, **given(lease_ms=args.lease)}
    return post(topic_path(args.queue, "claim"), body, safe=False, wait_ms=args.wait)


def _run_claim(call: Call) -> int:
    jobs = raw_jobs(call.server.send(_claim(call.args)), "claimed")
    for job in jobs:
        if call.screen.is_human:
            print_record(call.screen, job)
        else:
            call.screen.json(job)
    if not jobs:
        call.screen.note("no job is ready")
        return EXIT_NOT_FOUND
    if call.screen.is_human:
        call.screen.note(f"finish with `topics queue ack {call.args.queue} SEQ`, or return with `topics queue nack`")
    return EXIT_DONE


CLAIM = Command(
    name="claim",
    help="lease jobs, and print them",
    arguments=_claim_arguments,
    request=_claim,
    run=_run_claim,
    details="The exit status is 3 if no job is ready.",
    examples="  topics queue claim mail --max 10 --lease 5m\n  topics queue claim mail --wait 20s | jq .data\n",
)


# --- ack, nack, extend


def _held_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, "queue", help="the queue")
    parser.add_argument("seqs", metavar="SEQ", nargs="+", type=parse_seqs, help="jobs, or ranges such as 7-9")
    add_node(parser)


def _held(args: Args) -> dict[str, Any]:
    return {"node": args.node, "seqs": [seq for part in args.seqs for seq in part]}


def _ack(args: Args) -> Request:
    return post(topic_path(args.queue, "ack"), _held(args))


def _nack(args: Args) -> Request:
    return post(topic_path(args.queue, "nack"), {**_held(args), "delay_ms": args.delay})


def _extend(args: Args) -> Request:
    return post(topic_path(args.queue, "extend"), {**_held(args), "lease_ms": args.lease})


def _show_held(member: str, verb: str) -> Any:
    def show(call: Call, answer: Mapping[str, Any]) -> None:
        call.screen.line(f"{verb} {counted(answer[member], 'job')}")
        if answer["skipped"]:
            seqs = ", ".join(map(str, answer["skipped"]))
            call.screen.note(f"not held by {call.args.node}, and left alone: {seqs}", "yellow")

    return show


def _nack_arguments(parser: argparse.ArgumentParser) -> None:
    _held_arguments(parser)
    parser.add_argument(
        "--delay", metavar="DURATION", type=parse_duration, default=0, help="not before this time has passed [at once]"
    )


def _extend_arguments(parser: argparse.ArgumentParser) -> None:
    _held_arguments(parser)
    parser.add_argument(
        "--lease", metavar="DURATION", type=parse_duration, required=True, help="hold for this time from now"
    )


ACK = Command(
    name="ack",
    help="finish jobs: they are deleted",
    arguments=_held_arguments,
    request=_ack,
    show=_show_held("acked", "finished"),
    examples="  topics queue ack mail 7 8\n  topics queue ack mail 7-20\n",
)
NACK = Command(
    name="nack",
    help="return jobs to the queue",
    arguments=_nack_arguments,
    request=_nack,
    show=_show_held("nacked", "returned"),
    examples="  topics queue nack mail 7 --delay 1m\n",
)
EXTEND = Command(
    name="extend",
    help="hold jobs longer",
    arguments=_extend_arguments,
    request=_extend,
    show=_show_held("extended", "extended"),
    examples="  topics queue extend mail 7 --lease 10m\n",
)


# --- peek


def _peek_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, "queue", help="the queue")
    parser.add_argument("--state", choices=("ready", "in_flight", "delayed"), help="only jobs in this state")
    parser.add_argument("-n", "--limit", metavar="N", type=parse_positive, default=20, help="most jobs to print [20]")


def _peek(args: Args) -> Request:
    return get(topic_path(args.queue, "jobs", state=args.state, page_size=min(args.limit, 1000)))


def _run_peek(call: Call) -> int:
    jobs = _peeked(call)
    call.screen.rows(jobs, ("seq>", "state", "deliveries>", "held by", "until", "tag", "data"), _job_cells)
    if call.screen.is_human:
        call.screen.note(f"{counted(len(jobs), 'job')} shown; the queue still has them all")
    return EXIT_DONE


def _peeked(call: Call) -> list[bytes]:
    """Return the first jobs, page by page, as encoded JSON."""
    found: list[bytes] = []
    cursor = None
    while len(found) < call.args.limit:
        most = min(call.args.limit - len(found), 1000)
        body = call.server.send(
            get(topic_path(call.args.queue, "jobs", state=call.args.state, page_size=most, cursor=cursor))
        )
        found += raw_jobs(body, "jobs")
        cursor = json.loads(body).get("next_cursor")
        if cursor is None:
            break
    return found


def _job_cells(raw: bytes) -> list[Cell]:
    job = json.loads(raw)
    now_ms = SystemClock().now_ms()
    until = job.get("deadline") or job.get("deliver_at")
    style = {"ready": "green", "in_flight": "yellow"}.get(job["state"], "dim")
    return [
        str(job["$seq"]),
        Styled(job["state"].replace("_", " "), style),
        str(job["deliveries"]),
        job.get("node") or "",
        "" if until is None or until < now_ms else f"in {duration(until - now_ms)}",
        job.get("$tag") or "",
        data_of(raw),
    ]


PEEK = Command(
    name="peek",
    help="look at jobs without claiming them",
    arguments=_peek_arguments,
    request=_peek,
    run=_run_peek,
    examples="  topics queue peek mail --state in_flight\n",
)
