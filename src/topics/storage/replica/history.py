"""The sequence as a reader finds it: its end, the object of a moment, and the checkpoint that a state begins with."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.storage.replica import objects
from topics.storage.replica.bucket import Bucket, Listed
from topics.storage.replica.objects import LATEST, LOG, REPLICA, Checkpoint, Damaged, FileRef, Head, Object
from topics.storage.replica.sequence import End


class State(NamedTuple):
    """A state that can be restored: a checkpoint, the object that names it, and the last object that counts."""

    number: int
    head: Head
    checkpoint: Checkpoint
    last: Head


class History:
    """The objects of one replica. `read` fetches one, checks it, and keeps the last few heads."""

    def __init__(self, bucket: Bucket, replica_id: str, log: dict[int, Listed]) -> None:
        self.bucket = bucket
        self.replica_id = replica_id
        self.log = log  # by number

    @classmethod
    def open(cls, bucket: Bucket, *, whole: bool = False) -> History | None:
        """Return the replica in the bucket; None if there is none. Raise `Damaged` if other objects are in its place.

        Lists only the end of the sequence, unless `whole`: a busy replica has hundreds of thousands of objects.
        """
        identity = bucket.get(REPLICA)
        if identity is None:
            if (other := next(iter(bucket.ls("")), None)) is not None:
                raise Damaged(f"the bucket has objects that are not ours ({other.name}); choose another prefix")
            return None
        replica_id = objects.decode_identity(identity).id
        after = "" if whole else _after_hint(bucket)
        log = _numbers(bucket, after)
        if after and not log:
            log = _numbers(bucket, "")  # the hint was wrong
        return cls(bucket, replica_id, log)

    def refresh(self) -> None:
        """List the objects that were written since the last list."""
        self.log |= _numbers(self.bucket, objects.log_name(self.last_number) if self.log else "")

    @property
    def first_number(self) -> int:
        return min(self.log, default=0)

    @property
    def last_number(self) -> int:
        return max(self.log, default=0)

    def first_after(self, number: int) -> int:
        """Return the lowest number above `number` that was listed; 0 if there is none."""
        return min((one for one in self.log if one > number), default=0)

    def end(self) -> End:
        """Return the end of the sequence."""
        if not self.log:
            return End()
        head = self.read(self.last_number).head
        return End(head.number, head.term, head.at_ms, _base(head), head.upto, head.instance, head.host)

    def read(self, number: int) -> Object:
        """Return an object. Raise `Damaged` if it is missing, damaged, or of another replica."""
        data = self.bucket.get(objects.log_name(number))
        try:
            if data is None:
                raise Damaged(f"{objects.log_name(number)} is missing")
            return self.decode(data, number)
        except Damaged as error:
            if "; " in str(error):
                raise
            raise Damaged(f"{error}; restore the state before it with --at-object {number - 1}") from error

    def file(self, ref: FileRef) -> bytes:
        """Return a file of a checkpoint. Raise `Damaged` if it is missing or damaged."""
        data = self.bucket.get(ref.name)
        if data is None:
            raise Damaged(f"{ref.name} is missing")
        if len(data) != ref.size_bytes or objects.sum64(data) != ref.sum:
            raise Damaged(f"{ref.name} is damaged")
        return data

    def decode(self, data: bytes, number: int) -> Object:
        """Return an object out of its bytes. Raise `Damaged` if they are not those of this object."""
        found = objects.decode(data, number)
        if found.head.replica != self.replica_id:
            raise Damaged(f"{objects.log_name(number)} belongs to another replica ({found.head.replica})")
        return found

    def at_time(self, at_ms: int) -> int:
        """Return the number of the last object that was written until then. Raise `Damaged` if there is none.

        Reads one object for each halving of all numbers: the oldest objects are removed, and need not be listed.
        """
        low, high, found = 0, self.last_number, False
        # Bound: halves the range each time.
        while low < high:
            middle = (low + high + 1) // 2
            data = self.bucket.get(objects.log_name(middle))
            if data is None:
                low = middle
            elif self.decode(data, middle).head.at_ms <= at_ms:
                low, found = middle, True
            else:
                high = middle - 1
        if not found:
            next_step = "choose a later time, `topics replica status` shows the oldest"
            raise Damaged(f"the replica has no object from that time or before; {next_step}")
        return low

    def state(self, number: int) -> State:
        """Return the state at an object. Raise `Damaged` if there is no checkpoint at or before it."""
        last = self.read(number).head
        base = _base(last)
        if not base:
            raise Damaged(f"{objects.log_name(number)} has no checkpoint before it; choose a later object or time")
        found = self.read(base)
        if found.head.kind != "checkpoint":
            raise Damaged(f"{objects.log_name(base)} is no checkpoint, though {objects.log_name(number)} names it")
        return State(base, found.head, found.checkpoint, last)


def _base(head: Head) -> int:
    return head.number if head.kind == "checkpoint" else head.base


def _numbers(bucket: Bucket, after: str) -> dict[int, Listed]:
    found = {}
    for one in bucket.ls(LOG, after):
        if (number := objects.number_of(one.name)) is not None:
            found[number] = one
    return found


def _after_hint(bucket: Bucket) -> str:
    """Return the name of a late object, after which a list may begin."""
    data = bucket.get(LATEST)
    try:
        number = msgspec.json.decode(data or b"0", type=int)
    except msgspec.MsgspecError:
        return ""
    return objects.log_name(number - 1) if number > 1 else ""
