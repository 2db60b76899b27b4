"""`topics watch`: follow many topics at once, over one stream."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from topics.cli.command import Args, Call, Command
from topics.cli.connect.server import events, post, tag_match
from topics.cli.options import option
from topics.cli.output.failures import Failure
from topics.cli.output.records import elements, members, print_gap, print_record
from topics.client.call import Request, given
from topics.client.streams import EventParser
from topics.errors import Code, TopicsError

PAUSE_S = 0.5
HEARTBEAT_S = 15.0


def _request(args: Args, cursor: str | None = None) -> Request:
    options = given(tail=None if args.from_start else True, filter=tag_match(args.tag))
    body = {"topics": dict.fromkeys(args.topics, options), "include_tags": True}
    return post("/v0/watch", {**body, **given(cursor=cursor, node=args.skip_node)}, safe=False)


@Command(
    "watch",
    options=(
        option(
            "TOPIC…", "topics, or patterns such as 'chat-*', also for future topics", dest="topics", completes="topics"
        ),
        option("--from-start", "print the records that are there already, too"),
        option("--tag TAG", "only this tag; a trailing * matches the beginning"),
        option("--skip-node NODE", "leave out records of this writer", action="append"),
        option("-n --limit N", "stop after N records"),
    ),
    request=_request,
    curl_notes=lambda args, curl: [
        "This request opens a session and prints its stream_url. The records follow on that address:",
        curl(events("/STREAM_URL")),
    ],
    details="Prints new records of all topics and patterns, and gaps where records were lost, until interrupted.",
    examples="  topics watch 'chat-*' orders\n  topics watch orders --from-start --tag 'eu:*'\n",
)
def watch(call: Call) -> None:
    left, cursor, lost_contact = call.args.limit, None, False
    while True:
        try:
            for name, data, event_id in _events(call, _request(call.args, cursor)):
                lost_contact, cursor = False, event_id or cursor
                left = _print(call, name, data, left)
                if left == 0:
                    return
        except TopicsError as error:
            known = cursor is not None or lost_contact
            passing = error.retryable or error.code is Code.NOT_FOUND
            if not known or not passing:
                raise
            if not lost_contact:
                call.screen.warn(f"{error}; trying again")
            lost_contact = True
        time.sleep(PAUSE_S)


def _events(call: Call, request: Request) -> Iterator[tuple[str, bytes, str | None]]:
    """Open a session and yield the name, data and id of its events."""
    session = call.server.json(request)
    parser = EventParser()
    for chunk in call.server.stream(events(session["stream_url"]), timeout_s=3 * HEARTBEAT_S):
        for event in parser.feed(chunk):
            if event.name:
                yield event.name, event.data, event.id
        call.screen.flush()


def _print(call: Call, name: str, data: bytes, left: int | None) -> int | None:
    """Print one event and return how many records are left to print."""
    if name == "record":
        return _print_records(call, data, left)
    fields = json.loads(data)
    if name == "tombstone":
        if call.screen.is_human:
            print_gap(call.screen, fields, topic=fields["topic"])
        else:
            call.screen.json({"topic": fields.pop("topic"), "tombstone": fields})
    elif name == "topic-deleted":
        if call.screen.is_human:
            call.screen.line(call.screen.paint(f"  ────  {fields['topic']} was removed  ────", "yellow"))
        else:
            call.screen.json({"topic": fields.pop("topic"), "topic_deleted": fields})
    elif name == "error":
        text = f"the server reports {fields.get('code')}: {fields.get('error')}"
        if fields.get("code") not in (429, 503, 408):
            raise Failure(text)
        call.screen.warn(text)
    return left


def _print_records(call: Call, data: bytes, left: int | None) -> int | None:
    frame = members(data)
    topic, records = json.loads(frame["topic"]), elements(frame["records"])
    start = b'{"topic":' + frame["topic"] + b","
    for record in records[:left]:
        if call.screen.is_human:
            print_record(call.screen, record, topic=topic)
        else:
            sys.stdout.buffer.write(start + record[1:] + b"\n")
    return None if left is None else max(left - len(records), 0)


register = watch.register
