"""`topics queue …`: the group, and all of its commands except `work`.

Jobs stay as the server sent them, so that their data is printed as it was written.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
from typing import Any

from topics.cli.command import Args, Call, Command, group
from topics.cli.connect import get, post, put
from topics.cli.options import QUEUE, Row, option
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND, usage
from topics.cli.output.records import elements, members, print_record
from topics.cli.output.screen import Columns, Styled, confirm, highlighted
from topics.cli.output.units import count, duration, moment, parse_progress, parse_seqs
from topics.cli.queues.work import queue_state, work
from topics.client.call import Request, given, tag_match, topic_path
from topics.clock import SystemClock
from topics.errors import Code, TopicsError
from topics.plurals import counted

PAGE_ROWS = 1000
SHOWN_CONFIG = ("lease_ms", "max_deliveries", "dead_letter", "paused")
ORIGIN, DELIVERIES, SOURCE_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"
REASON = "$dead_letter_reason"


QUEUE_COLUMNS: Columns = {
    "queue": lambda row: Styled(row["topic"] + " (paused)" * row["paused"], "bold"),
    "ready>": lambda row: highlighted(row["ready"], "green"),
    "blocked>": lambda row: highlighted(row.get("blocked", 0), "yellow"),
    "in flight>": lambda row: count(row["in_flight"]),
    "delayed>": lambda row: count(row["delayed"]),
    "dead ever>": lambda row: highlighted(row["dead_lettered"], "red"),
    "lease>": lambda row: duration(row["lease_ms"]),
    "deliveries>": lambda row: count(row["max_deliveries"]) if row["max_deliveries"] else "any",
    "dead letters": lambda row: row.get("dead_letter_error") or row["dead_letter"] or "none",
}
JOB_STYLES = {"ready": "green", "in flight": "yellow", "blocked": "yellow"}
JOB_COLUMNS: Columns = {
    "seq>": lambda job: str(job["$seq"]),
    "state": lambda job: _state(job),
    "deliveries>": lambda job: str(job["deliveries"]),
    "held by": lambda job: job.get("node") or "",
    "progress": lambda job: _progress(job.get("progress")),
    "until": lambda job: _until(job.get("deadline") or job.get("deliver_at") or 0),
    "tag": lambda job: job.get("$tag") or "",
    "key": lambda job: job.get("$key") or "",
    "last reason": lambda job: _first_line(job["reasons"][-1]["reason"] if job.get("reasons") else ""),
    "data": lambda job: job["data"],
}
LETTER_COLUMNS: Columns = {
    "seq>": lambda letter: Styled(str(letter["$seq"]), "red"),
    "moved at": lambda letter: moment(letter["$ts"]),
    "was job>": lambda letter: str(letter.get("meta", {}).get(SOURCE_SEQ, "")),
    "deliveries>": lambda letter: str(letter.get("meta", {}).get(DELIVERIES, "")),
    "tag": lambda letter: letter.get("$tag") or "",
    "key": lambda letter: letter.get("$key") or "",
    "reason": lambda letter: _first_line(letter.get("meta", {}).get(REASON, "")),
    "data": lambda letter: letter["data"],
}


def _decoded(raw: bytes) -> dict[str, Any]:
    """Decode a job or record, except its data, which stays as it was written."""
    return {**json.loads(raw), "data": members(raw).get("data", b"null").decode()}


def _first_line(text: object) -> str:
    return str(text).partition("\n")[0]


def _state(job: dict[str, Any]) -> Styled:
    text = "blocked" if job.get("blocked") else job["state"].replace("_", " ")
    return Styled(text, JOB_STYLES.get(text, "dim"))


def _progress(progress: dict[str, Any] | None) -> str:
    return "" if progress is None else f"{progress['share']:.0%} {progress.get('text') or ''}".rstrip()


def _until(ms: int) -> str:
    left_ms = ms - SystemClock().now_ms()
    return f"in {duration(left_ms)}" if left_ms >= 0 else ""


def _add_node(parser: argparse.ArgumentParser) -> None:
    """Add the name under which this user claims jobs: the same in every command, so `ack` finds what `claim` leased."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.getuid())
    node = f"cli-{user}@{socket.gethostname()}"[:128]
    option("--node NODE", "name of the worker [%(default)s]", default=node)(parser)


@Command(
    "ls",
    "list queues and their jobs",
    (option("[PREFIX]", "only names that begin so", default="", completes="topics"),),
    request=lambda args: get("/v0/topics", prefix=args.prefix or None, details=True),
    details="`dead ever` counts all jobs that were moved to the dead letters since the queue was created, also those "
    "that were moved back; `topics queue dead` lists the present ones.",
    examples="  topics queue ls\n",
)
def ls(call: Call) -> None:
    rows = [
        {"topic": row["topic"], **row["queue"], **{key: row["config"][key] for key in SHOWN_CONFIG}}
        for row in call.server.rows(call.request(call.args).path, "topics")
        if row["type"] == "queue"
    ]
    empty = "no queues; `topics create NAME --type queue` creates one"
    call.screen.rows(rows, QUEUE_COLUMNS, empty=empty)


# --- claim, ack, nack, extend


def _claim(args: Args) -> Request:
    body = {"node": args.node, "max": args.max, "wait_ms": args.wait, **given(lease_ms=args.lease)}
    return post(topic_path(args.queue, "claim"), body, safe=False, wait_ms=args.wait)


@Command(
    "claim",
    "lease jobs, and print them",
    (
        QUEUE,
        option("-n --max N", "most jobs to claim [1]", default=1),
        option("--lease DURATION", "how long to hold them [the queue's]"),
        option("--wait DURATION", "wait for a job, up to 30s", default=0),
        _add_node,
    ),
    request=_claim,
    details="The exit status is 3 if no job is ready.",
    examples="  topics queue claim mail --max 10 --lease 5m\n  topics queue claim mail --wait 20s | jq .data\n",
)
def claim(call: Call) -> int:
    jobs = elements(members(call.server.send(_claim(call.args)))["claimed"])
    for job in jobs:
        if call.screen.is_human:
            print_record(call.screen, job)
        else:
            call.screen.json(job)
    if not jobs:
        call.screen.note(f"no job is ready{_why_none(queue_state(call))}")
        return EXIT_NOT_FOUND
    if call.screen.is_human:
        call.screen.note(f"finish with `topics queue ack {call.args.queue} SEQ`, or return with `topics queue nack`")
    return EXIT_DONE


def _why_none(state: dict[str, Any]) -> str:
    """Return why a claim got no job although the queue has some."""
    queue, config, name = state["queue"], state["config"], state["topic"]
    if config["paused"]:
        return f": the queue is paused; `topics queue resume {name}` goes on"
    if not state["count"]:
        return ""
    if 0 < config["max_in_flight"] <= queue["in_flight"]:
        return f": workers hold {counted(queue['in_flight'], 'job')}, as many as `max_in_flight` allows"
    if queue["ready"] > queue.get("blocked", 0):
        return ": `rate` allows no further job now"
    waiting = f"{queue.get('blocked', 0):,} blocked by an earlier job of their key"
    return f": {queue['in_flight']:,} in flight, {queue['delayed']:,} delayed, {waiting}"


SEQS = option("SEQ…", "jobs, or ranges such as 7-9", dest="seqs", type=parse_seqs)


def _about_held(name: str, help: str, member: str, verb: str, *options: Row, examples: str, **fields: str) -> Command:
    """Return a command about jobs that the worker holds. `fields` of the request are options by their names."""

    def request(args: Args) -> Request:
        seqs = [seq for part in args.seqs for seq in part]
        more = given(**{field: getattr(args, dest) for field, dest in fields.items()})
        return post(topic_path(args.queue, name), {"node": args.node, "seqs": seqs, **more})

    def run(call: Call) -> None:
        answer = call.ask()
        moved = answer.get("dead_lettered", 0)
        dead = f", and moved {moved:,} of them to the dead letters" if moved else ""
        call.screen.result(answer, f"{verb} {counted(answer[member], 'job')}{dead}")
        if answer["skipped"] and call.screen.is_human:
            seqs = ", ".join(map(str, answer["skipped"]))
            call.screen.note(f"not held by {call.args.node}, and left alone: {seqs}", "yellow")

    return Command(name, help, (QUEUE, SEQS, _add_node, *options), request=request, examples=examples)(run)


ack = _about_held(
    "ack", "finish jobs: they are deleted", "acked", "finished",
    examples="  topics queue ack mail 7 8\n  topics queue ack mail 7-20\n",
)  # fmt: skip
nack = _about_held(
    "nack", "return jobs to the queue", "nacked", "returned",
    option("--delay DURATION", "not before this time has passed [the retry policy of the queue, or at once]"),
    option("--reason TEXT", "why the jobs failed"),
    delay_ms="delay", reason="reason", examples="  topics queue nack mail 7 --delay 1m --reason 'server is busy'\n",
)  # fmt: skip
extend = _about_held(
    "extend", "hold jobs longer, or show how far they are", "extended", "extended",
    option("--lease DURATION", "hold for this time from now"),
    option("--progress PROGRESS", "a number from 0 to 1, and a text", type=parse_progress),
    lease_ms="lease", progress="progress",
    examples="  topics queue extend mail 7 --lease 10m\n  topics queue extend mail 7 --progress '0.4 image 4 of 10'\n",
)  # fmt: skip


# --- pause, resume


def _switch(name: str, help: str, *, paused: bool) -> Command:
    def run(call: Call) -> None:
        queue_state(call)  # a PUT would create a topic with this name
        call.screen.result(call.ask(), f"{call.args.queue} is {'paused' if paused else 'not paused'}")

    example = f"  topics queue {name} mail\n"
    put_it = lambda args: put(topic_path(args.queue), {"paused": paused})  # noqa: E731
    return Command(name, help, (QUEUE,), request=put_it, examples=example)(run)


pause = _switch("pause", "give out no jobs, until `resume`", paused=True)
resume = _switch("resume", "give out jobs again", paused=False)


# --- peek


def _peek(args: Args, found: int = 0, cursor: str | None = None) -> Request:
    most = min(args.limit - found, PAGE_ROWS)
    return get(topic_path(args.queue, "jobs", state=args.state, page_size=most, cursor=cursor))


@Command(
    "peek",
    "look at jobs without claiming them",
    (
        QUEUE,
        option("--state", "only jobs in this state", choices=("ready", "in_flight", "delayed")),
        option("-n --limit N", "most jobs to print [20]", default=20),
    ),
    request=_peek,
    examples="  topics queue peek mail --state in_flight\n",
)
def peek(call: Call) -> None:
    jobs: list[bytes] = []
    cursor = None
    while len(jobs) < call.args.limit:
        body = call.server.send(_peek(call.args, len(jobs), cursor))
        jobs += elements(members(body)["jobs"])
        cursor = json.loads(body).get("next_cursor")
        if cursor is None:
            break
    call.screen.rows(jobs, JOB_COLUMNS, decode=_decoded)
    if call.screen.is_human:
        call.screen.note(f"{counted(len(jobs), 'job')} shown; the queue still has them all")


# --- dead letters


@Command(
    "dead",
    "list the dead letters of a queue",
    (QUEUE, option("-n --limit N", "most letters to print [20]", default=20)),
    request=lambda args: get(topic_path(args.queue, touch=False)),
    examples="  topics queue dead mail\n",
)
def dead(call: Call) -> None:
    queue = call.args.queue
    topic = queue_state(call)["config"]["dead_letter"]
    if topic is None:
        hint = f"set one: `topics config {queue} --dead-letter {queue}.dead --max-deliveries 3`"
        raise usage(f"{queue} has no dead-letter topic", hint)
    letters = _letters(call, topic)
    call.screen.rows(letters, LETTER_COLUMNS, empty=f"{topic} has no dead letters of {queue}", decode=_decoded)
    if call.screen.is_human and letters:
        call.screen.note(f"`topics queue redrive {queue}` moves them back")


def _letters(call: Call, topic: str) -> list[bytes]:
    """Return the first dead letters that come from this queue, as encoded JSON."""
    found: list[bytes] = []
    cursor, caught_up = 0, False
    while len(found) < call.args.limit and not caught_up:
        body = {"from_seq": cursor, "limit": PAGE_ROWS, "include_tags": True}
        try:
            text = call.server.send(post(topic_path(topic, "diff"), body))
        except TopicsError as error:
            if error.code is Code.TOPIC_NOT_FOUND:
                return []  # the server creates the topic with the first dead letter
            raise
        page = json.loads(text)
        pairs = zip(elements(members(text)["records"]), page["records"], strict=True)
        found += [raw for raw, one in pairs if one.get("meta", {}).get(ORIGIN) == call.args.queue]
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    return found[: call.args.limit]


def _redrive(args: Args, *, dry_run: bool | None = None, from_seq: int = 0) -> Request:
    body = {
        **given(match=tag_match(args.tag), seqs=[seq for part in args.seq for seq in part] or None),
        "from_seq": from_seq,
        "dry_run": args.dry_run if dry_run is None else dry_run,
    }
    return post(topic_path(args.queue, "redrive"), body, safe=bool(body["dry_run"]))


@Command(
    "redrive",
    "move dead letters back to their queue",
    (
        QUEUE,
        option("--tag TAG", "only this tag; a trailing * matches the beginning"),
        option("--seq SEQ", "only these seqs of `queue dead`", type=parse_seqs, action="append", default=[]),
        option("--dry-run", "count the letters, and move none"),
    ),
    asks=True,
    request=_redrive,
    details="Counts them first and asks.",
    examples="  topics queue redrive mail --dry-run\n  topics queue redrive mail --tag 'welcome*' --yes\n",
)
def redrive(call: Call) -> None:
    queue = call.args.queue
    answer = _all_pages(call, dry_run=True)
    if not call.args.dry_run and answer["redriven"]:
        if not call.args.yes:
            letters = counted(answer["redriven"], "dead letter")
            confirm(f"move {letters} of {answer['dead_letter']} back to {queue}?")
        answer = _all_pages(call, dry_run=False)
    verb = "would move" if answer["dry_run"] else "moved"
    text = f"{verb} {counted(answer['redriven'], 'dead letter')} back to {queue}"
    if not answer["redriven"]:
        text = f"no dead letters of {queue} to move; `topics queue dead {queue}` lists them"
    call.screen.result(answer, text)


def _all_pages(call: Call, *, dry_run: bool) -> dict[str, Any]:
    moved, from_seq = 0, 0
    while True:
        page = call.server.json(_redrive(call.args, dry_run=dry_run, from_seq=from_seq))
        moved += page["redriven"]
        if page["caught_up"]:
            names = {"topic": page["topic"], "dead_letter": page["dead_letter"]}
            return {**names, "redriven": moved, "dry_run": dry_run}
        from_seq = page["next_from_seq"]


register = group("queue", ls, claim, ack, nack, extend, pause, resume, peek, dead, redrive, work)
