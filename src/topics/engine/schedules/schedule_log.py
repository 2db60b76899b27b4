"""Log entries of schedules, and how each changes the state.

A tick is one entry: the record, and the position of its schedule. So the log has both or neither, and a start knows
which ticks are done with, whatever the topic remembers of idempotency keys.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, structs

from topics.engine.state.topics import State
from topics.engine.write import apply
from topics.model.schedule import Schedule
from topics.storage.log import entry as entries


@entries.known
class ScheduleChanged(Struct, array_like=True):
    """A schedule is created or changed, or deleted if `schedule` is None."""

    kind: ClassVar[int] = 48
    topic_id: int  # that it had last
    name: str
    schedule: Schedule | None


@entries.known
class Ticked(Struct, array_like=True):
    """A schedule is done with all ticks up to `position`. `append` is None if the topic keeps nothing on disk."""

    kind: ClassVar[int] = 49
    topic_id: int
    name: str
    position: int  # 0 for a run that a client asked for
    last_ms: int = 0  # the tick that appends a record; 0 if none does
    append: entries.Append | None = None

    def topic_ids(self) -> tuple[int, ...]:
        return () if self.append is None else (self.append.topic_id,)


def change(state: State, entry: ScheduleChanged) -> None:
    state.schedules.put(entry.name, entry.schedule)


def move(state: State, entry: Ticked, seq: int) -> None:
    """Move the schedule. `seq` is that of the record, if there is one."""
    if (one := state.schedules.by_name.get(entry.name)) is not None:
        last = {"topic_id": entry.topic_id, "last_ms": entry.last_ms, "last_seq": seq} if entry.last_ms else {}
        moved = structs.replace(one, position=max(one.position, entry.position), **last)
        state.schedules.put(entry.name, moved)


def replay_ticked(state: State, entry: Ticked) -> None:
    made = entry.append
    move(state, entry, 0 if made is None else made.first)
    if made is not None and (topic := state.by_id.get(made.topic_id)) is not None:
        apply.replay_append(state, topic, made)
