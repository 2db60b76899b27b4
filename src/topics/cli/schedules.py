"""`topics schedule …`: append a record at certain times."""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw

from topics.cli.command import Args, Call, Command, group, removal
from topics.cli.connect import get, post
from topics.cli.data.append import RECORD_OPTIONS, defaults, encode, json_value
from topics.cli.options import Row, one_of, option
from topics.cli.output.screen import Columns, Styled, highlighted
from topics.cli.output.units import duration, moment, parse_time
from topics.client.call import Request, given, schedule_path
from topics.clock import SystemClock

SCHEDULE = option("SCHEDULE", "name of the schedule", completes="schedules")
COLUMNS: Columns = {
    "schedule": lambda row: Styled(row["schedule"], "bold"),
    "topic": lambda row: row["topic"],
    "when": lambda row: _when(row),
    "last": lambda row: moment(row["last_at"]),
    "next": lambda row: _next(row),
    "failures>": lambda row: highlighted(row["failures_total"], "red"),
    "problem": lambda row: Styled(row["last_error"] or "", "red"),
}


def _timing(*, required: bool) -> tuple[Row, ...]:
    return (
        one_of(
            option("--cron CRON", "five fields: minute, hour, day, month, day of week; or @hourly, @daily, …"),
            option("--every DURATION", "at this interval, such as 30m"),
            required=required,
        ),
        option("--timezone ZONE", "time zone of --cron, such as Europe/Berlin [UTC]"),
        option("--starts TIME", "not before this time (ISO 8601, or milliseconds)", type=parse_time),
        option("--ends TIME", "not after this time", type=parse_time),
    )


def _timing_of(args: Args) -> dict[str, object]:
    return given(
        cron=args.cron, every_ms=args.every, timezone=args.timezone, starts_at=args.starts, ends_at=args.ends
    )  # fmt: skip


def _next(row: dict[str, Any]) -> str:
    if row["paused"] or row["next_at"] is None:
        return "paused" if row["paused"] else "never"
    return f"in {duration(max(row['next_at'] - SystemClock().now_ms(), 0) // 1000 * 1000)}"


def _when(row: dict[str, object]) -> str:
    every = row["every_ms"]
    if isinstance(every, int):
        return f"every {duration(every)}"
    return f"{row['cron']}" + ("" if row["timezone"] == "UTC" else f" {row['timezone']}")


@Command(
    "ls",
    "list schedules with their last and next tick",
    (
        option("[PREFIX]", "only names that begin so", dest="schedule", completes="schedules"),
        option("--topic TOPIC", "only schedules of this topic", completes="topics"),
    ),
    request=lambda args: get("/v0/schedules", prefix=args.schedule, topic=args.topic),
    examples="  topics schedule ls\n  topics schedule ls --topic jobs | jq .next_at\n",
)
def ls(call: Call) -> None:
    rows = list(call.server.rows(call.request(call.args).path, "schedules"))
    call.screen.rows(rows, COLUMNS, empty="no schedules; `topics schedule put NAME TOPIC DATA --every 30m` creates one")


def _put(args: Args) -> Request:
    record = encode({"data": Raw(json_value(args.data)), **defaults(args)})
    body = {
        "topic": args.topic, "record": Raw(record), "paused": args.paused, **_timing_of(args),
        **given(jitter_ms=args.jitter, overlap=args.overlap, catch_up=args.catch_up),
    }  # fmt: skip
    return Request("PUT", schedule_path(args.schedule), encode(body))


put_schedule = Command(
    "put",
    "create a schedule, or change it",
    (
        SCHEDULE,
        option("TOPIC", "the topic to append to; it must exist", completes="topics"),
        option("DATA", "a JSON value; other text becomes a string"),
        *_timing(required=True),
        option("--jitter DURATION", "delay each tick by up to this time"),
        option(
            "--overlap", "queues: skip a tick while the last job is not finished [allow]", choices=("allow", "skip")
        ),
        option("--catch-up", "which missed ticks run after downtime [none]", choices=("none", "last", "all")),
        option("--paused", "no ticks until `schedule resume`"),
        *RECORD_OPTIONS,
    ),
    request=_put,
    examples="  topics schedule put nightly jobs '{\"do\": \"report\"}' --cron '30 2 * * *' --timezone Europe/Berlin\n"
    "  topics schedule put sweep jobs sweep --every 30m --overlap skip\n",
    says=lambda args, answer: (
        f"{'created' if answer['created'] else 'updated'} {answer['schedule']}: {_when(answer)} → {answer['topic']}"
    ),
)


@Command(
    "get",
    "show a schedule",
    (SCHEDULE,),
    request=lambda args: get(schedule_path(args.schedule)),
    examples="  topics schedule get nightly\n",
)
def get_schedule(call: Call) -> None:
    answer = call.ask()
    shown = [(name.strip(">"), cell(answer)) for name, cell in COLUMNS.items()]
    names = "starts_at", "ends_at", "catch_up", "overlap", "jitter_ms", "last_seq", "skipped_total", "record"
    call.screen.fields(answer, [*shown, *((name, _shown(answer[name])) for name in names)])


def _shown(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


rm = removal(
    "schedule", "remove a schedule; its records stay", SCHEDULE,
    path=lambda args: schedule_path(args.schedule),
    question=lambda args, found: f"remove {args.schedule} ({_when(found)})? Its records stay.",
    examples="  topics schedule rm nightly\n",
)  # fmt: skip


run = Command(
    "run",
    "append the record of a schedule now",
    (SCHEDULE,),
    request=lambda args: post(schedule_path(args.schedule, "run"), {}),
    examples="  topics schedule run nightly\n",
    says=lambda args, answer: f"appended the record of {args.schedule} to {answer['topic']}: seq {answer['seq']}",
)

preview = Command(
    "preview",
    "print the next ten ticks, of a schedule or of other times",
    (
        option("SCHEDULE", "an existing schedule, or any name with --cron or --every", completes="schedules"),
        *_timing(required=False),
        option("--after TIME", "ticks after this time [now]", type=parse_time),
    ),
    request=lambda args: post(schedule_path(args.schedule, "preview"), _timing_of(args) | given(after=args.after)),
    examples="  topics schedule preview nightly\n"
    "  topics schedule preview any --cron '30 2 * * MON-FRI' --timezone Europe/Berlin\n",
    says=lambda args, answer: "\n".join(time["local"] for time in answer["times"]),
)


def _switch(name: str, help: str, *, paused: bool) -> Command:
    def says(args: Args, answer: Any) -> str:
        return f"{args.schedule} is {'paused' if paused else f'not paused; next tick {_next(answer)}'}"

    pause_it = lambda args: post(schedule_path(args.schedule, "pause"), {"paused": paused})  # noqa: E731
    return Command(name, help, (SCHEDULE,), request=pause_it, examples=f"  topics schedule {name} nightly\n", says=says)


pause = _switch("pause", "have no ticks, until `resume`; missed ticks are not caught up", paused=True)
resume = _switch("resume", "have ticks again", paused=False)


register = group("schedule", ls, put_schedule, get_schedule, rm, run, pause, resume, preview)
