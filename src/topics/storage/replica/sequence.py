"""What the writer of a replica does next, and what an answer of the bucket means. Pure: no files, no bucket, no clock.

    state      when                                    gates of the log                          next state
    starting   the term is not in the bucket           closed                                    opening, fenced
    opening    the term is there; the files of its     closed; open while the bucket has no      following, lost,
               first checkpoint are being uploaded     checkpoint at all: there is nothing that  fenced
                                                       another server could continue
    following  the term has a checkpoint: replicated   open up to the uploaded position          lost, ended, fenced
               writes are acknowledged once uploaded
    lost       the bucket was away for too long; the   closed                                    starting, with the
               rest of the log was not kept                                                      next checkpoint
    fenced     another server has a higher term        closed                                    none
    ended      the checkpoint of an orderly stop is    open                                      none
               in the bucket

One object is in flight at a time, so the numbers have no gap. An object whose answer was lost is sent again, byte for
byte, until it is known what became of it. Positions are those of the log: a file number, and an offset in that file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from msgspec import Struct

from topics import __version__
from topics.storage.datadir import FORMAT_VERSION
from topics.storage.replica import objects
from topics.storage.replica.objects import Checkpoint, FileRef, Head, Kind, Piece, Position

OBJECT_BYTES = 4 << 20
FIRST_RETRY_MS, MAX_RETRY_MS = 100, 5_000
MAX_GATHER_MS = 50
ALONE = 8  # while writers do not come back, one of so many uploads waits for them
REPEATED_AFTER = 1_000  # objects: an idle writer repeats its checkpoint, so that a restore has few to read
NOWHERE: Position = (0, 0)
EVERYWHERE: Position = (1 << 63, 0)


class State(StrEnum):
    STARTING = "starting"
    OPENING = "opening"
    FOLLOWING = "following"
    LOST = "lost"
    FENCED = "fenced"
    ENDED = "ended"


_NEXT = {
    State.STARTING: {State.OPENING, State.FENCED},
    State.OPENING: {State.FOLLOWING, State.LOST, State.FENCED},
    State.FOLLOWING: {State.LOST, State.ENDED, State.FENCED},
    State.LOST: {State.STARTING, State.FENCED},
    State.FENCED: set(),
    State.ENDED: set(),
}


class End(Struct, frozen=True):
    """The last object of a sequence, as a server found it when it started; number 0 in an empty replica."""

    number: int = 0
    term: int = 0
    at_ms: int = 0
    base: int = 0  # number of the last checkpoint; 0 if there is none
    upto: Position = NOWHERE  # where the log in the bucket ends
    instance: str = ""
    host: str = ""


class Server(Struct, frozen=True, kw_only=True):
    """What a sequence says about its writer, and how it writes."""

    url: str = ""
    host: str = ""
    address: str = ""
    interval_ms: int = 1000
    max_lag_bytes: int = 4 << 30


class Plan(Struct, eq=False):
    """A local checkpoint on its way into the bucket. `refs` has its files once all of them are there."""

    snapshot: int
    clean: bool = False
    refs: list[FileRef] | None = None
    after: Position = NOWHERE  # bytes that must be in the bucket before the checkpoint is


class Upload(Struct, eq=False):
    """An object to be created. The transport adds the bytes of `head.pieces`, once."""

    head: Head
    body: bytes = b""
    upto: Position = NOWHERE
    plan: Plan | None = None
    data: bytes = b""  # all of it, once it is encoded


class Sequence:
    """The sequence as its writer extends it. Times are elapsed milliseconds, except for `wall_ms`."""

    def __init__(self, replica: str, instance: str, end: End, server: Server) -> None:
        self.replica = replica
        self.instance = instance
        self._server = server
        self.state = State.STARTING
        self.term = end.term
        self.last_number = end.number
        self.base = end.base  # number of the object of the last checkpoint
        self.reason = "start"
        self.fenced_by: Head | None = None
        self.synced: Position = NOWHERE
        self.uploaded: Position = NOWHERE
        self.failing_since_ms: int | None = None
        self.retry_at_ms = 0
        self.retries = 0
        self.last_failure = ""
        self.waiting = 0  # writers that wait for an upload
        self._expected = 0  # writers that waited when the last upload ended: those that it released write again
        self._gathered_ms = 0  # until when the next upload waits for these
        self._alone = 0  # how many uploads do not wait for them
        self._last_wall_ms = end.at_ms
        self._end_upto = end.upto
        self.left: Mapping[int, int] = {}  # the size of each log file that the log has left; the log changes it
        # Where objects may end: synced positions, about `OBJECT_BYTES` apart, each with the time that it covers.
        self._marks: list[tuple[Position, int]] = []
        self.as_of_ms: Callable[[], int] = lambda: 0  # the time that a sync which ends now covers, by the wall clock
        self.is_quiet: Callable[[], bool] = lambda: False  # whether all of the log is synced
        self.alive_ms = 0  # how often an object shows that the writer lives; 0 if nothing follows it
        self.followed = False  # whether one of these would take over
        self.is_doubtful = False  # whether another server may have written the next object
        self.confirmed_ms = 0  # when the last object was sent that the bucket has confirmed
        self._behind_since_ms = 0  # about when the oldest bytes that are not uploaded were synced
        self._due_ms = 0  # when bytes that nobody waits for are uploaded
        self._in_flight: Upload | None = None
        self._sent_ms = 0  # when it was sent first
        self._plans: list[Plan] = []  # the first one is being uploaded
        self._installed: Plan | None = None  # the last one that this term has
        self._began: list[tuple[int, int]] = []  # log files, each with the first object that has bytes of it

    # --- what the log and the store report

    def note_synced(self, position: Position, now_ms: int) -> None:
        """Note that the log is durable up to here."""
        if position <= self.synced:
            return
        if not self.lag_bytes:
            self._due_ms = now_ms + self._server.interval_ms
            self._behind_since_ms = now_ms
        before = self._marks[-2][0] if len(self._marks) > 1 else self.uploaded
        if self._marks and self.size_bytes(before, position) <= OBJECT_BYTES:
            self._marks[-1] = position, self.as_of_ms()
        else:
            self._marks.append((position, self.as_of_ms()))
        self.synced = position
        if self.is_open and self.lag_bytes > self._server.max_lag_bytes:
            self._give_up()

    def note_checkpoint(self, plan: Plan) -> None:
        """Note that a local checkpoint is complete. Only the newest one waits behind the one that is being uploaded."""
        if self.state in (State.FENCED, State.ENDED):
            return
        if self.state in (State.STARTING, State.LOST) or self.uploaded == NOWHERE:
            self._plans = [plan]
            self._restart(plan)
        else:
            self._plans[1:] = [plan]

    def drop(self, plan: Plan) -> None:
        """Give a checkpoint up: a file of it is missing. The next one takes its place."""
        self._plans.remove(plan)

    def note_files(self, plan: Plan, refs: list[FileRef]) -> None:
        """Note that all files of the checkpoint are in the bucket."""
        plan.refs = refs
        plan.after = self.synced if plan.clean or not self.base else NOWHERE

    # --- what is next

    @property
    def is_open(self) -> bool:
        """Whether the term is in the bucket, and bytes of the log follow it."""
        return self.state in (State.OPENING, State.FOLLOWING)

    @property
    def plan(self) -> Plan | None:
        """The checkpoint whose files have to be uploaded next, if there is one and its term is in the bucket."""
        if not self._plans or self._plans[0].refs is not None or not self.is_open:
            return None
        return self._plans[0]

    def next(self, now_ms: int, wall_ms: int) -> Upload | None:
        """Return the object to create now. The caller reports what became of it, and calls this again."""
        if self._in_flight is not None:
            return self._in_flight if self.failing_since_ms is not None and now_ms >= self.retry_at_ms else None
        if self.state is State.STARTING:
            upload = self._upload("term", wall_ms, reason=self.reason, version=__version__)
        elif not self.is_open:
            return None
        elif self._is_cut_due(now_ms):
            if self.waiting and now_ms >= self._gathered_ms and not (self._are_back or self._alone):
                self._alone = ALONE  # it waited in vain
            upto, as_of_ms = self._marks.pop(0)
            pieces = tuple(self.pieces(self.uploaded, upto))
            upload = self._upload("bytes", wall_ms, pieces=pieces, upto=upto, as_of_ms=as_of_ms)
        elif self.waiting and self._marks:
            return None  # a checkpoint has what waits: it must not come first, or a takeover would know more than this
        elif self._plans and self._plans[0].refs is not None and self._plans[0].after <= self.uploaded:
            upload = self._upload("checkpoint", wall_ms)
            upload.plan = self._plans[0]
        elif self.is_doubtful or (self.alive_ms and now_ms - self.confirmed_ms >= self.alive_ms):
            self.is_doubtful = False
            repeated = self._installed if self.last_number - self.base >= REPEATED_AFTER else None
            as_of_ms = self.as_of_ms() if self.is_quiet() and not self._marks else 0
            upload = self._upload("checkpoint" if repeated else "alive", wall_ms, as_of_ms=as_of_ms)
            upload.plan = repeated
        else:
            return None
        if (plan := upload.plan) is not None and plan.refs is not None:
            since = next((first for file, first in self._began if file >= plan.snapshot), upload.head.number)
            found = Checkpoint(snapshot=plan.snapshot, since=since, clean=plan.clean, files=plan.refs)
            upload.body = objects.encode_checkpoint(found)
        self._in_flight, self._last_wall_ms, self._sent_ms = upload, upload.head.at_ms, now_ms
        return upload

    @property
    def has_sent(self) -> bool:
        """Whether an object was sent whose outcome is not known yet."""
        return self._in_flight is not None

    def stalled_ms(self, now_ms: int) -> int:
        """Return for how long the bucket has not confirmed an object that was sent."""
        return 0 if self._in_flight is None else now_ms - self._sent_ms

    def wake_in_ms(self, now_ms: int) -> int | None:
        """Return when `next` may have something that it has not now; None if only an event can change that."""
        if self._in_flight is not None:
            return None if self.failing_since_ms is None else max(self.retry_at_ms - now_ms, 0)
        waits = []
        if self.is_open and self._marks:
            waits.append(self._gathered_ms if self.waiting else self._due_ms)
        if self.is_open and self.alive_ms:
            waits.append(self.confirmed_ms + self.alive_ms)
        return max(min(waits) - now_ms, 0) if waits else None

    def _is_cut_due(self, now_ms: int) -> bool:
        if not self._marks:
            return False
        awaited = self._plans and self._plans[0].refs is not None and self._plans[0].after > self.uploaded
        urgent = self.waiting > 0 and (self._are_back or now_ms >= self._gathered_ms)
        return urgent or bool(awaited) or len(self._marks) > 1 or now_ms >= self._due_ms

    @property
    def _are_back(self) -> bool:
        """Whether nearly all writers wait that the next upload is for.

        Writers that an upload has released send their next writes right after it. Without a moment for these, half of
        the writers would wait for the uploads of the others: half the throughput, and twice the latency.
        """
        return self.waiting * 8 >= self._expected * 7

    def _upload(
        self, kind: Kind, wall_ms: int, *, pieces: tuple[Piece, ...] = (), upto: Position | None = None,
        as_of_ms: int = 0, reason: str = "", version: str = "",
    ) -> Upload:  # fmt: skip
        server, term = self._server, self.term + (kind == "term")
        upto = upto or (self._end_upto if kind == "term" else self.uploaded)
        return Upload(
            Head(
                replica=self.replica, number=self.last_number + 1, term=term, kind=kind,
                at_ms=max(wall_ms, self._last_wall_ms), instance=self.instance, host=server.host,
                address=server.address, base=self.base, upto=upto, as_of_ms=as_of_ms, followed=self.followed,
                pieces=pieces, reason=reason, version=version, stored=FORMAT_VERSION,
            ),
            upto=upto,
        )  # fmt: skip

    # --- what became of an object

    def created(self, upload: Upload, now_ms: int) -> None:
        """Note that the object is in the bucket."""
        self._in_flight, self.confirmed_ms = None, self._sent_ms
        self.failing_since_ms, self.retries, self.last_failure = None, 0, ""
        head, self.last_number = upload.head, upload.head.number
        if head.kind == "term":
            self.term = head.term
            if self.state is State.STARTING:
                self._go(State.OPENING)
        elif head.kind == "bytes" and self.is_open:  # else the rest of its term was given up
            for number, _, _ in head.pieces:
                if not self._began or self._began[-1][0] < number:
                    self._began.append((number, head.number))
            self.uploaded = upload.upto
            self._due_ms = now_ms + self._server.interval_ms
            self._behind_since_ms = self._sent_ms
            self._expected, self._alone = self.waiting, max(self._alone - 1, 0)
            self._gathered_ms = now_ms + (0 if self._alone else min(now_ms - self._sent_ms, MAX_GATHER_MS))
        elif head.kind == "checkpoint":
            self._checkpoint_created(upload)

    def _checkpoint_created(self, upload: Upload) -> None:
        plan, self.base = upload.plan, upload.head.number
        if plan is None or plan not in self._plans:
            return  # it is repeated, or the rest of its term was given up
        self._plans.remove(plan)
        self._installed = plan
        self._began = [one for one in self._began if one[0] >= plan.snapshot]
        if self.state is State.OPENING:
            self._go(State.FOLLOWING)
        if plan.clean:
            self._go(State.ENDED)

    def exists(self, upload: Upload, found: bytes, now_ms: int) -> None:
        """Note that the bucket has an object with this number. If it is ours, an answer was lost before."""
        if found == upload.data:
            self.created(upload, now_ms)
            return
        self._in_flight = None
        try:
            self.fenced_by = objects.decode(found, upload.head.number).head
        except objects.Damaged as error:
            self.last_failure = str(error)
        self._go(State.FENCED)

    def failed(self, error: str, now_ms: int) -> None:
        """Note that it is unknown whether the object is in the bucket. The same one is sent again."""
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        self.last_failure = error
        self.retry_at_ms = now_ms + min(FIRST_RETRY_MS << min(self.retries, 10), MAX_RETRY_MS)
        self.retries += 1

    # --- gates

    @property
    def covered(self) -> Position:
        """The position up to which a server that takes over has the log."""
        if self.state is State.ENDED:
            return EVERYWHERE
        if self.state is State.FOLLOWING:
            return self.uploaded
        if self.state is State.OPENING and not self.base and not any(plan.refs is not None for plan in self._plans):
            return EVERYWHERE  # no server can take over: there is no checkpoint
        return NOWHERE

    # --- the log that is not uploaded yet

    @property
    def lag_bytes(self) -> int:
        """The size of the log that is synced and not uploaded."""
        return self.size_bytes(self.uploaded, self.synced) if self.uploaded != NOWHERE else 0

    def lag_ms(self, now_ms: int) -> int:
        return now_ms - self._behind_since_ms if self.lag_bytes else 0

    def size_bytes(self, begin: Position, end: Position) -> int:
        return sum(size for _, _, size in self.pieces(begin, end))

    def pieces(self, begin: Position, end: Position) -> list[Piece]:
        """Return the parts of log files between two positions."""
        if begin[0] == end[0]:
            return [(end[0], begin[1], end[1] - begin[1])] if end[1] > begin[1] else []
        files = sorted(number for number in self.left if begin[0] <= number < end[0])
        starts = [(number, begin[1] if number == begin[0] else 0) for number in files]
        found = [(number, at, self.left[number] - at) for number, at in starts if self.left[number] > at]
        return [*found, (end[0], 0, end[1])] if end[1] else found

    @property
    def needed_from(self) -> int | None:
        """The number of the first log file that must be kept; None if none has to be."""
        if self.state in (State.FENCED, State.ENDED, State.LOST) or self.uploaded == NOWHERE:
            return None
        return self.uploaded[0]

    @property
    def held(self) -> list[Plan]:
        """The checkpoints whose files must be kept."""
        return [] if self.state in (State.FENCED, State.ENDED) else self._plans

    # --- transitions

    def _give_up(self) -> None:
        """Keep the log no longer: the next checkpoint begins a new term."""
        self._go(State.LOST)
        self._installed = None
        self._plans.clear()
        self._marks.clear()

    def _restart(self, plan: Plan) -> None:
        """Begin a term with this checkpoint, and the log from its beginning on."""
        if self.state is State.LOST:
            self._go(State.STARTING)
            self.reason, self._end_upto = "gap", self.uploaded
        self._began.clear()
        self.uploaded = (plan.snapshot, 0)
        self._marks = [(self.synced, self.as_of_ms())] if self.synced > self.uploaded else []

    def _go(self, state: State) -> None:
        if state not in _NEXT[self.state]:
            raise RuntimeError(f"a replica that is {self.state} cannot become {state}")
        self.state = state
