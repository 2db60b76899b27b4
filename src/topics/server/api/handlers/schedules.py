"""Handlers of schedules: create and configure, get, list, delete, run, and preview the next ticks."""

from datetime import datetime
from functools import partial
from typing import Any

from msgspec import Raw, structs

from topics.engine.schedules.times import zone_of
from topics.engine.steps import Steps
from topics.model import schedule as model
from topics.model.schedule import Schedule
from topics.server.api.route import Call, in_slices, noted, page_answer
from topics.server.api.services import Services
from topics.server.http.messages import Answer
from topics.server.http.request import query_string
from topics.server.limits.loop_holds import Cause
from topics.server.loop.answer import json_answer, json_when_done, performance


def put_schedule(services: Services, call: Call) -> Answer:
    wanted = call.body()
    ticket = noted(services, call, services.engine.schedules.put(call.params["schedule"], wanted), config=wanted)
    return json_when_done(
        ticket, call.request,
        lambda done, took: model.SchedulePutAnswer(**_fields(services, done[0]), created=done[1], performance=took),
    )  # fmt: skip


def get_schedule(services: Services, call: Call) -> Answer:
    one = services.engine.schedules.get(call.params["schedule"])
    return json_answer(200, model.ScheduleAnswer(**_fields(services, one), performance=performance(call.request)))


@in_slices(Cause.LIST)
def list_schedules(services: Services, call: Call) -> Steps[Answer]:
    topic, state = query_string.parse(call.request.query).get("topic"), services.engine.state

    def find(name: str) -> Schedule | None:
        one = state.schedules.by_name.get(name)
        if one is None or topic not in (None, one.config.topic) or not call.caller.may_use(one.config.topic):
            return None
        return one

    return page_answer(
        call, state.schedules.names, find, lambda one: model.ScheduleState(**_fields(services, one)), model.ScheduleList
    )


def drop_schedule(services: Services, call: Call) -> Answer:
    name = call.params["schedule"]
    ticket = noted(services, call, services.engine.schedules.drop(name))
    return json_when_done(ticket, call.request, partial(model.ScheduleDropped, name))


def run_schedule(services: Services, call: Call) -> Answer:
    """Append the record of a schedule now. Its ticks go on as before."""
    name = call.params["schedule"]
    ticket = services.engine.schedules.run_now(name)
    return json_when_done(
        ticket, call.request, lambda done, took: model.ScheduleRun(name, done.topic.name, done.first, took)
    )


def pause_schedule(services: Services, call: Call) -> Answer:
    """Pause a schedule, or let it go on, without its other settings."""
    ticket = services.engine.schedules.pause(call.params["schedule"], paused=call.body().paused)
    return json_when_done(
        ticket, call.request, lambda one, took: model.ScheduleAnswer(**_fields(services, one), performance=took)
    )


def preview_schedule(services: Services, call: Call) -> Answer:
    """List the next ticks: of the schedule as it is, or of the timing in the request."""
    name = call.params["schedule"]
    timing, found = services.engine.schedules.preview(name, call.body())
    zone = zone_of(timing.timezone)
    times = [model.TickTime(at, datetime.fromtimestamp(at / 1000, zone).isoformat()) for at in found]
    return json_answer(200, model.SchedulePreview(name, times, performance(call.request)))


def _fields(services: Services, one: Schedule) -> dict[str, Any]:
    standing = services.engine.schedules.standing(one.name)
    return structs.asdict(one.config) | {
        "schedule": one.name,
        "record": Raw(one.config.record),
        "last_at": one.last_ms or None,
        "last_seq": one.last_seq or None,
        "next_at": services.engine.schedules.next_at(one),
        "skipped_total": standing.skipped,
        "failures_total": standing.failures,
        "last_error": standing.last_error,
    }
