"""Retention, checks and figures of a replica. Blocks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import msgspec
from msgspec import Struct

from topics.model.inspection import ReplicaFigures
from topics.storage.replica import objects
from topics.storage.replica.bucket import Bucket, Listed
from topics.storage.replica.history import History
from topics.storage.replica.objects import FILES, LOG, STANDBYS, Announced, Damaged, Head

SLACK_MS = 600_000  # clocks of a bucket differ from each other by less
HOUR_MS = 3_600_000


class Pruned(Struct, kw_only=True):
    objects: int = 0
    files: int = 0
    bytes: int = 0
    oldest_ms: int = 0  # the oldest moment that can be restored from now on; 0 if nothing was old enough to remove


class Status(ReplicaFigures, Struct, kw_only=True):
    """Figures of a replica."""

    standbys: list[Announced] = []
    lag_ms: int | None = None  # of the replica, as the writer reports it; None if it does not answer
    failures: list[str] = []  # what the writer reports, or why it does not answer


class Verified(Struct, kw_only=True):
    """The result of a check. `restorable_to` is the last object with a state before the first damage; 0 if none has."""

    objects: int = 0
    files: int = 0
    bytes: int = 0
    restorable_to: int = 0
    problems: list[str] = []

    @property
    def clean(self) -> bool:
        return not self.problems


def prune(history: History, *, keep_ms: int, now_ms: int) -> Pruned:
    """Remove what no restore to a moment of the last `keep_ms` needs. The state at the end always stays.

    The time is that of the bucket, if the clock of this machine is ahead: a clock that jumped must not empty a replica.
    A file that a later checkpoint names is in the first checkpoint that stays, or was uploaded after that one: an
    upload reuses only the files of the checkpoint before it.
    """
    now_ms = min(now_ms, max((one.at_ms + SLACK_MS for one in history.log.values()), default=0))
    try:
        state = history.state(history.at_time(now_ms - keep_ms))
    except Damaged:
        return Pruned()  # everything is newer
    first = min(state.number, state.checkpoint.since)
    old, limit_ms = list[Listed](), 0
    for one in history.bucket.ls(LOG):  # a busy replica has hundreds of thousands: only the old ones are kept here
        number = objects.number_of(one.name)
        if number is not None and number < first:
            old.append(one)
        elif number == state.number:
            limit_ms = one.at_ms - SLACK_MS
            if history.bucket.is_sorted:
                break
    kept = {ref.name for ref in state.checkpoint.files}
    files = [one for one in history.bucket.ls(FILES) if one.name not in kept and one.at_ms < limit_ms]
    silent = [one.name for one in history.bucket.ls(STANDBYS) if one.at_ms < limit_ms]
    history.bucket.delete([*(one.name for one in (*sorted(old), *files)), *silent])
    size = sum(one.size_bytes for one in (*old, *files))
    return Pruned(objects=len(old), files=len(files), bytes=size, oldest_ms=state.head.at_ms)


def oldest_ms(history: History) -> int:
    """Return the oldest moment that can be restored; 0 if there is none. Reads up to the first checkpoint."""
    for number in sorted(history.log):
        head = history.read(number).head
        if head.kind == "checkpoint" and history.read(number).checkpoint.since >= history.first_number:
            return head.at_ms
    return 0


def status(history: History, *, now_ms: int) -> Status:
    """Return the figures of the replica."""
    found = Status(replica=history.replica_id)
    if not history.log:
        return found
    last = history.read(history.last_number).head
    files = list(history.bucket.ls(FILES))
    found.term, found.host, found.address = last.term, last.host, last.address
    found.last_object, found.last_ms = last.number, last.at_ms
    found.objects, found.files = len(history.log), len(files)
    found.bytes = sum(one.size_bytes for one in (*history.log.values(), *files))
    found.objects_last_hour = sum(one.at_ms > now_ms - HOUR_MS for one in history.log.values())
    found.oldest_ms, found.standbys = oldest_ms(history), standbys(history.bucket)
    try:
        state = history.state(last.number)
    except Damaged:
        return found
    found.checkpoint, found.clean = state.number, state.checkpoint.clean and state.number == last.number
    return found


def standbys(bucket: Bucket) -> list[Announced]:
    """Return the servers that follow the replica, as they have announced themselves last."""
    found: list[Announced] = []
    for one in bucket.ls(STANDBYS):
        with suppress(msgspec.DecodeError):  # of another program
            found.append(msgspec.json.decode(bucket.get(one.name) or b"", type=Announced))
    return sorted(found, key=lambda one: one.name)


def verify(history: History, *, progress: Callable[[int, int], None] = lambda done, total: None) -> Verified:
    """Read every object and every file that a checkpoint names, and compare them with their checksums."""
    found = Verified()
    sizes = {one.name: one.size_bytes for one in history.bucket.ls(FILES)}
    total = sum(one.size_bytes for one in history.log.values()) + sum(sizes.values())
    checked: dict[str, str] = {}  # files that were read, with what is wrong
    before: Head | None = None
    for number in range(history.first_number, history.last_number + 1) if history.log else ():
        problems = []
        try:
            one = history.read(number)
        except Damaged as error:
            problems.append(str(error).partition("; ")[0])
            before = None
        else:
            found.objects += 1
            found.bytes += history.log[number].size_bytes
            if before is not None and one.head.term < before.term:
                problems.append(f"{objects.log_name(number)} has term {one.head.term}, after term {before.term}")
            before = one.head
            for ref in one.checkpoint.files if one.head.kind == "checkpoint" else ():
                if ref.name not in checked:
                    checked[ref.name] = ""
                    try:
                        history.file(ref)
                    except Damaged as error:
                        checked[ref.name] = str(error)
                    found.files += 1
                    found.bytes += ref.size_bytes
                if checked[ref.name]:
                    problems.append(f"{checked[ref.name]}, which object {number} needs as {ref.path}")
                progress(found.bytes, total)
        progress(found.bytes, total)
        if before is not None and (before.base or before.kind == "checkpoint") and not problems and not found.problems:
            found.restorable_to = number
        found.problems += problems
    return found
