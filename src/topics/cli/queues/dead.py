"""`topics queue dead` and `redrive`: the dead letters of a queue, and their way back."""

from __future__ import annotations

import argparse
import json
from typing import Any

from topics.cli.command import Args, Call, Command, topic_argument
from topics.cli.connect.server import get, post, tag_match
from topics.cli.output.failures import EXIT_DONE, usage
from topics.cli.output.screen import Styled, confirm
from topics.cli.output.units import moment, parse_positive, parse_seqs
from topics.cli.queues.jobs import data_of, queue_state, raw_jobs
from topics.client.call import Request, given, topic_path
from topics.clock import SystemClock
from topics.errors import Code, TopicsError
from topics.plurals import counted

PAGE_LETTERS = 1000
ORIGIN, DELIVERIES, SOURCE_SEQ = "$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"


def _dead_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, "queue", help="the queue")
    parser.add_argument(
        "-n", "--limit", metavar="N", type=parse_positive, default=20, help="most letters to print [20]"
    )


def _state(args: Args) -> Request:
    return get(topic_path(args.queue, touch=False))


def _run_dead(call: Call) -> int:
    state = queue_state(call)
    topic = state["config"]["dead_letter"]
    if topic is None:
        hint = f"set one: `topics config {call.args.queue} --dead-letter {call.args.queue}.dead --max-deliveries 3`"
        raise usage(f"{call.args.queue} has no dead-letter topic", hint)
    letters = _letters(call, topic)
    columns = ("seq>", "moved at", "was job>", "deliveries>", "tag", "data")
    call.screen.rows(letters, columns, _cells, empty=f"{topic} has no dead letters of {call.args.queue}")
    if call.screen.is_human and letters:
        call.screen.note(f"`topics queue redrive {call.args.queue}` moves them back")
    return EXIT_DONE


def _letters(call: Call, topic: str) -> list[bytes]:
    """Return the first dead letters that come from this queue, as encoded JSON."""
    found: list[bytes] = []
    cursor = 0
    while len(found) < call.args.limit:
        body = {"from_seq": cursor, "limit": PAGE_LETTERS, "include_tags": True}
        try:
            text = call.server.send(post(topic_path(topic, "diff"), body))
        except TopicsError as error:
            if error.code is Code.TOPIC_NOT_FOUND:
                return []  # the server creates the topic with the first dead letter
            raise
        page = json.loads(text)
        pairs = zip(raw_jobs(text, "records"), page["records"], strict=True)
        found += [raw for raw, one in pairs if one.get("meta", {}).get(ORIGIN) == call.args.queue]
        cursor = page["next_from_seq"]
        if page["caught_up"]:
            break
    return found[: call.args.limit]


def _cells(raw: bytes) -> list[Any]:
    letter = json.loads(raw)
    meta = letter.get("meta", {})
    return [
        Styled(str(letter["$seq"]), "red"),
        moment(letter["$ts"], SystemClock().now_ms()),
        str(meta.get(SOURCE_SEQ, "")),
        str(meta.get(DELIVERIES, "")),
        letter.get("$tag") or "",
        data_of(raw),
    ]


DEAD = Command(
    name="dead",
    help="list the dead letters of a queue",
    arguments=_dead_arguments,
    request=_state,
    run=_run_dead,
    examples="  topics queue dead mail\n",
)


def _redrive_arguments(parser: argparse.ArgumentParser) -> None:
    topic_argument(parser, "queue", help="the queue")
    parser.add_argument("--tag", metavar="TAG", help="only this tag; a trailing * matches the beginning")
    parser.add_argument(
        "--seq", metavar="SEQ", type=parse_seqs, action="append", default=[], help="only these seqs of `queue dead`"
    )
    parser.add_argument("-n", "--dry-run", action="store_true", help="count the letters, and move none")


def _redrive(args: Args, *, dry_run: bool | None = None, from_seq: int = 0) -> Request:
    body = {
        **given(match=tag_match(args.tag), seqs=[seq for part in args.seq for seq in part] or None),
        "from_seq": from_seq,
        "dry_run": args.dry_run if dry_run is None else dry_run,
    }
    return post(topic_path(args.queue, "redrive"), body, safe=bool(body["dry_run"]))


def _run_redrive(call: Call) -> int:
    """Count first, ask, then move, page by page."""
    count = _all_pages(call, dry_run=True)
    if call.args.dry_run or not count["redriven"]:
        return _report(call, count)
    if not call.args.yes:
        letters = counted(count["redriven"], "dead letter")
        confirm(f"move {letters} of {count['dead_letter']} back to {call.args.queue}?")
    return _report(call, _all_pages(call, dry_run=False))


def _all_pages(call: Call, *, dry_run: bool) -> dict[str, Any]:
    total: dict[str, Any] = {}
    moved, from_seq = 0, 0
    while True:
        total = call.server.json(_redrive(call.args, dry_run=dry_run, from_seq=from_seq))
        moved += total["redriven"]
        if total["caught_up"]:
            return {
                "topic": total["topic"], "dead_letter": total["dead_letter"], "redriven": moved, "dry_run": dry_run
            }  # fmt: skip
        from_seq = total["next_from_seq"]


def _report(call: Call, answer: dict[str, Any]) -> int:
    queue, verb = call.args.queue, "would move" if answer["dry_run"] else "moved"
    text = f"{verb} {counted(answer['redriven'], 'dead letter')} back to {queue}"
    if not answer["redriven"]:
        text = f"no dead letters of {queue} to move; `topics queue dead {queue}` lists them"
    call.screen.result(answer, text)
    return EXIT_DONE


REDRIVE = Command(
    name="redrive",
    help="move dead letters back to their queue",
    arguments=_redrive_arguments,
    asks=True,
    request=_redrive,
    run=_run_redrive,
    details="Counts them first and asks.",
    examples="  topics queue redrive mail --dry-run\n  topics queue redrive mail --tag 'welcome*' --yes\n",
)
