"""Request, stored and response types of schedules."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, structs

from topics.errors import Code, TopicsError, invalid
from topics.model.names import check_schedule, check_topic
from topics.model.records import NewRecord
from topics.model.topic import U64
from topics.model.wire import Performance

MIN_EVERY_MS = 1000
MAX_JITTER_MS = 24 * 3_600_000
MAX_TIME_MS = 200_000_000_000_000  # in the year 8307: a time that calendars can still add to
MAX_RECORD_BYTES = 16 << 10
MAX_CRON_CHARS = 256

Overlap = Literal["allow", "skip"]
CatchUp = Literal["none", "last", "all"]
Time = Annotated[int, Meta(ge=0, le=MAX_TIME_MS)]


class Timing(Struct, kw_only=True):
    """When a schedule ticks. Either `cron` or `every_ms` is set."""

    cron: Annotated[
        str | None,
        "five fields: minute, hour, day of month, month, day of week; or `@hourly`, `@daily`, `@weekly`, `@monthly`, "
        "`@yearly`",
    ] = None
    every_ms: Annotated[
        Annotated[int, Meta(ge=MIN_EVERY_MS, le=MAX_TIME_MS)] | None, "the time between two ticks; at least 1000"
    ] = None
    timezone: Annotated[str, "the time zone of `cron`, such as `Europe/Berlin`"] = "UTC"
    starts_at: Annotated[Time | None, "no tick is before this time; `every_ms` counts from it"] = None
    ends_at: Annotated[Time | None, "no tick is after this time"] = None


class ScheduleOptions(Timing, kw_only=True):
    """What a request and a stored schedule share."""

    topic: Annotated[str, "the topic that gets a record at each tick; it must exist"]
    jitter_ms: Annotated[int, Meta(ge=0, le=MAX_JITTER_MS, description="delay each tick by up to this time")] = 0
    paused: Annotated[bool, "whether the schedule has no ticks for now; ticks that it misses are not caught up"] = False
    overlap: Annotated[Overlap, "`skip`: no tick while the job of the last one is not finished; queues only"] = "allow"
    catch_up: Annotated[
        CatchUp, "which ticks run that the server missed: `none`, the `last` one, or `all`, but no more than 100"
    ] = "none"


class ScheduleRequest(ScheduleOptions, kw_only=True, forbid_unknown_fields=True):
    """Body of `PUT /v0/schedules/:schedule`."""

    record: Annotated[NewRecord, "the record to append, as in an append; at most 16384 bytes"]


class ScheduleConfig(ScheduleOptions, kw_only=True, gc=False):
    """The stored configuration of a schedule."""

    record: bytes  # a `NewRecord` as JSON


class Schedule(Struct, frozen=True, gc=False):
    """A schedule and its position. A change replaces it, so a thread may read it."""

    name: str
    config: ScheduleConfig
    topic_id: int  # of the last record; of the topic at the last change if there is none
    since_ms: int  # `every_ms` counts from it if there is no `starts_at`
    position: int  # the time of the last tick that is done with, or of the last change
    last_ms: int = 0  # the time of the tick, or of the request, that appended the last record
    last_seq: int = 0


class SchedulePreviewRequest(Timing, kw_only=True):
    """Body of `POST /v0/schedules/:schedule/preview`. Without `cron` and `every_ms`, those of the schedule count."""

    after: Annotated[Time | None, "list ticks after this time; now by default"] = None


class SchedulePauseRequest(Struct, forbid_unknown_fields=True):
    """Body of `POST /v0/schedules/:schedule/pause`."""

    paused: Annotated[bool, "false lets the ticks go on"] = True


class ScheduleState(ScheduleOptions, kw_only=True):
    """A schedule and its position."""

    schedule: str
    record: Annotated[Raw, "the record that is appended"]
    last_at: Annotated[U64 | None, "the time of the last tick that appended a record, or of a run; null if none did"]
    last_seq: Annotated[U64 | None, "the seq of that record"]
    next_at: Annotated[U64 | None, "the time of the next tick, without its jitter; null if there is none"]
    skipped_total: Annotated[
        U64, "ticks since the start that appended nothing: the last job was open, or they were late"
    ]
    failures_total: Annotated[U64, "how often a tick has failed since the start"]
    last_error: Annotated[str | None, "why the last tick failed; null once one succeeds"]


class ScheduleAnswer(ScheduleState, kw_only=True):
    performance: Performance


class SchedulePutAnswer(ScheduleAnswer, kw_only=True):
    """A schedule, and whether this request created it."""

    created: bool


class ScheduleList(Struct, omit_defaults=True):
    schedules: Annotated[list[ScheduleState], "a page of schedules by name"]
    performance: Performance
    next_cursor: str | None = None


class ScheduleDropped(Struct):
    schedule: str
    deleted: Annotated[bool, "whether the schedule existed"]
    performance: Performance


class ScheduleRun(Struct):
    schedule: str
    topic: str
    seq: Annotated[U64, "the seq of the record"]
    performance: Performance


class TickTime(Struct):
    at: Annotated[U64, "milliseconds since 1970"]
    local: Annotated[str, "the same in the time zone of the schedule"]


class SchedulePreview(Struct):
    schedule: str
    times: Annotated[list[TickTime], "the next ten ticks, without their jitter"]
    performance: Performance


def check_request(name: str, request: ScheduleRequest) -> ScheduleConfig:
    """Return the configuration to store. Raise `invalid_request` if the request is invalid."""
    check_schedule(name)
    check_topic(request.topic)
    fields = structs.asdict(request.record)
    record = msgspec.json.encode({key: value for key, value in fields.items() if value not in (None, UNSET)})
    if len(record) > MAX_RECORD_BYTES:
        raise invalid(f"record has {len(record)} bytes; the limit is {MAX_RECORD_BYTES}", field="record")
    return ScheduleConfig(**(structs.asdict(request) | {"record": record}))


def schedule_not_found(name: str) -> TopicsError:
    return TopicsError(Code.SCHEDULE_NOT_FOUND, f'schedule "{name}" does not exist', detail={"schedule": name})
