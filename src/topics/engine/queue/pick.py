"""Which jobs are delivered next, and in which form.

Reclaimed jobs come first. Then jobs by priority, highest first, but of any `TURNS` jobs that are delivered while
several priorities wait, one comes from the lower priority that has waited longest: so even the lowest moves. Within a
priority jobs come in the order in which they became claimable: a delayed job at the time at which its delay ends. The
time is proportional to the jobs picked, however many wait.

Picking takes jobs out of their places; `Pass.undo` puts them back, for a pass that needs the disk. The part of the log
without claimable jobs stays passed, so each try begins where the last one ended. Jobs that a staged delete takes are
skipped and stay in their places, because the log may still refuse the delete.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from itertools import chain, islice, pairwise
from operator import add

from topics.engine.state.jobs.job import Job
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import Topic
from topics.engine.write.delete import taking
from topics.model import record_bytes
from topics.model.queue import JobState, Reason
from topics.model.record_bytes import encode_json
from topics.model.records import MAX_BATCH_BYTES
from topics.storage.segments.cold import Cold, Needs
from topics.storage.segments.extras import Terms, has_terms, terms_of
from topics.storage.segments.marks import LIVE
from topics.storage.segments.segment import Segment

TURNS = 8
EXAMINE_MAX = 4096  # seqs that the cursor passes in one step; more would delay other requests
AHEAD = 256  # seqs of one priority whose segments are fetched together
TAG_FIELD = record_bytes.TAG[1:] + b"%b,"
KEY_FIELD = record_bytes.KEY[1:] + b"%b,%b"
LOAD_AHEAD = 8  # segments that are fetched together if the next one is not in memory


class Pass:
    """One search for up to `want` jobs."""

    def __init__(self, topic: Topic, queue: Leases, want: int, *, expiring_before: int = 0) -> None:
        """Skip returned jobs below `expiring_before`: they are about to expire."""
        self.topic, self.queue = topic, queue
        self._expiring_before = expiring_before
        self.jobs: list[Job] = []
        self._reclaimed: list[Job] = []
        self._taken: set[int] = set()
        self._next_plain: int | None = None  # found in the log, not picked yet
        self._cursor_was = queue.cursor  # or, until a job was found in the log, the seq below which there is none
        self._found_plain = False
        self._examined = 0  # seqs of the log
        self._rated = topic.config.rate_per_key is not None
        # For each priority with jobs, from the highest on, where the search is. 0 has those of the log, too.
        self._ats: dict[int, int] = {}
        if queue.by_priority:
            waiting = sorted(queue.by_priority.items(), reverse=True)
            self._ats = {priority: one.at for priority, one in waiting if one.seqs}
        self._stays: dict[int, int] = {}  # by priority, the first place with a job that a staged delete takes
        self._turns_before = queue.turn, list(queue.served) if self._ats else queue.served
        try:
            if queue.reclaim:
                self._take_reclaimed(want)
            if queue.keys.blocked and queue.ready - len(queue.keys.blocked) <= len(self.jobs):
                return  # all others wait for a job of their key
            if self._ats:
                self._ats.setdefault(0, queue.by_priority[0].at)
                self._take_by_priority(want)
            elif len(self.jobs) < want:
                self.jobs += [Job(seq) for seq in self._plain(want - len(self.jobs), others=False)]
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        queue = self.queue
        queue.cursor = self._cursor_was
        queue.turn, queue.served = self._turns_before
        if self._rated:
            take_tokens(queue, [job.seq for job in self.jobs], -1)
        for job in reversed(self._reclaimed):
            queue.reclaim[job.seq] = job
            queue.reclaim.move_to_end(job.seq, last=False)

    def keep(self) -> None:
        for priority, at in self._ats.items():
            waiting = self.queue.by_priority[priority]
            waiting.at = self._stays.get(priority, at)
            waiting.trim()

    def _take_reclaimed(self, want: int) -> None:
        queue, reclaim, topic = self.queue, self.queue.reclaim, self.topic
        for job in list(reclaim.values()) if self._rated else reclaim.values():
            if len(self.jobs) >= want:
                break
            if self._rated and (due_ms := has_token_ms(queue, job.seq)):
                queue.delay(reclaim.pop(job.seq), due_ms)
                continue
            if job.seq < self._expiring_before or (topic.staged_deletes and taking(topic, job.seq) is not None):
                continue
            if self._rated:
                take_tokens(queue, (job.seq,))
            self._reclaimed.append(job)
            self._taken.add(job.seq)
            self.jobs.append(job)
        for job in self._reclaimed:
            del reclaim[job.seq]

    def _take_by_priority(self, want: int) -> None:
        queue, jobs = self.queue, self.jobs
        while len(jobs) < want:
            fronts: dict[int, int] = {}
            for priority in self._ats:
                if (seq := self._front(priority, others=bool(fronts))) is not None:
                    fronts[priority] = seq
            if not fronts:
                break
            chosen, *lower = fronts
            if lower:
                queue.turn += 1
                if queue.turn % TURNS == 0:
                    chosen = min(lower, key=queue.served.__getitem__)
            queue.served[chosen] = queue.turn
            seq = fronts[chosen]
            self._taken.add(seq)
            if self._rated:
                take_tokens(queue, (seq,))
            if seq == self._next_plain:
                self._next_plain = None
                jobs.append(Job(seq))
            else:
                self._ats[chosen] += 1
                jobs.append(Job(seq, chosen))
        if self._next_plain is not None:
            queue.cursor = self._next_plain

    def _front(self, priority: int, *, others: bool) -> int | None:
        """Return the next seq of this priority: of those with the lowest, the one that became claimable first."""
        waiting = self._front_waiting(priority)
        if priority:
            return waiting
        if self._next_plain is None and self.queue.cursor <= self.topic.head:
            self._next_plain = next(iter(self._plain(1, others=others or waiting is not None)), None)
        if waiting is None or self._next_plain is None:
            return waiting or self._next_plain
        return min(waiting, self._next_plain, key=self._claimable_since)

    def _front_waiting(self, priority: int) -> int | None:
        """Return the next seq in `by_priority`. Drop seqs that are deleted, or that a place has."""
        queue, seqs, at = self.queue, self.queue.by_priority[priority].seqs, self._ats[priority]
        while at < len(seqs):
            seq = seqs[at]
            try:
                # The look at `open` saves one at the segment: a job with a key stays there for as long as it is live.
                live = seq in queue.keys.open or self.topic.is_live(seq)
                if live and seq not in self._taken and not queue.touched(seq):
                    if self.topic.staged_deletes and taking(self.topic, seq) is not None:
                        self._stays.setdefault(priority, at)
                    elif self._rated and (due_ms := has_token_ms(queue, seq)):
                        queue.wait(seq, due_ms << 4 | priority)
                    else:
                        break
            except Cold:
                _need_marks(self.topic, seqs[at : at + AHEAD].tolist())
                raise
            at += 1
        self._ats[priority] = at
        return seqs[at] if at < len(seqs) else None

    def _claimable_since(self, seq: int) -> tuple[int, int]:
        """Return when a job of the log became claimable, and its seq. Raises `Cold` like a read."""
        segment = self.topic.segment_of(seq)
        return max(segment.columns.ts[seq - segment.first], terms_at(self.topic, seq).due_ms), seq

    def _plain(self, want: int, *, others: bool) -> list[int]:
        """Return jobs from the log in its order; the cursor ends behind the last one.

        Stop early if there are `others`: the next pass continues.
        """
        topic, queue = self.topic, self.queue
        found: list[int] = []
        seq = max(queue.cursor, topic.earliest)
        for staged in topic.staged_deletes:
            seq = staged.skip(seq)
        segments, index, head = topic.segments, topic.index_of(seq), topic.head
        others = others or bool(self.jobs)
        while seq <= head and len(found) < want and (self._examined < EXAMINE_MAX or not (others or found)):
            segment = segments[index]
            end = segment.first + segment.count
            seq = max(seq, segment.first)
            if segment.live and seq < end:
                began = seq
                seq = self._plain_in(segment, index, seq, want, found)
                self._examined += seq - began
                self._found_plain = self._found_plain or bool(found)
                if not self._found_plain:
                    self._cursor_was = max(self._cursor_was, seq)
            if seq >= end or not segment.live:
                seq = max(seq, end)
                index += 1
                if index == len(segments):
                    break
        queue.cursor = seq
        return found

    def _plain_in(self, segment: Segment, index: int, seq: int, want: int, found: list[int]) -> int:
        """Add jobs of one segment from `seq` on. Return the seq to continue at."""
        try:
            marks, extras = segment.marks, segment.columns.extras
        except Cold:
            needs = Needs()
            for one in self.topic.segments[index : index + LOAD_AHEAD]:
                if one.live and not needs.full:
                    needs.run(one.check_loaded)
            needs.check()
            raise
        first, count = segment.first, segment.count
        if not extras and seq > self.queue.check_upto and not self.topic.staged_deletes:
            if marks is None:
                stop = min(first + count, seq + want - len(found))
                found.extend(range(seq, stop))
                return stop
            at = seq - first
            # Bound: each round but the last finds at least one job.
            while len(found) < want and (at := marks.find(LIVE, at, count)) >= 0:
                upto = min(at + want - len(found), count)
                if any(marks[at:upto]):
                    found += [seq for seq, mark in enumerate(marks[at:upto], first + at) if mark == LIVE]
                else:
                    found.extend(range(first + at, first + upto))
                at = upto
            return first + (at if at >= 0 else count)
        return self._plain_among(segment, seq, want, found)

    def _plain_among(self, segment: Segment, seq: int, want: int, found: list[int]) -> int:
        """Do the same for a segment in which places have some of the jobs, or a staged delete takes some."""
        marks, extras, check_upto = segment.marks, segment.columns.extras, self.queue.check_upto
        first, end = segment.first, min(segment.end, seq + EXAMINE_MAX)
        while seq < end and len(found) < want:
            at = seq - first
            dead = marks is not None and marks[at]
            special = at in extras and has_terms(extras[at])
            elsewhere = seq <= check_upto and (seq in self._taken or self.queue.touched(seq))
            if not dead and not special and not elsewhere:
                delete = taking(self.topic, seq) if self.topic.staged_deletes else None
                if delete is None:
                    found.append(seq)
                else:
                    delete.passed(seq)
            seq += 1
        return seq


# --- the tokens of keys


def has_token_ms(queue: Leases, seq: int) -> int:
    """Return when the key of the job has a token; 0 if it has one, or needs none."""
    rate, line = queue.topic.config.rate_per_key, queue.keys.open.get(seq)
    if rate is None or line is None or queue.buckets.left(rate, line.key, queue.now_ms):
        return 0
    return queue.buckets.next_ms(rate, line.key)


def take_tokens(queue: Leases, seqs: Iterable[int], tokens: int = 1) -> None:
    """Take tokens for jobs from the buckets of their keys, or return them."""
    rate = queue.topic.config.rate_per_key
    for seq in seqs if rate is not None else ():
        if (line := queue.keys.open.get(seq)) is not None:
            queue.buckets.take(rate, line.key, tokens, queue.now_ms)


# --- records


def terms_at(topic: Topic, seq: int) -> Terms:
    """Return the terms of the job with this seq. Raises `Cold` like a read."""
    segment = topic.segment_of(seq)
    return terms_of(segment.columns.extras.get(seq - segment.first))


def runs(topic: Topic, seqs: list[int]) -> Iterator[tuple[Segment, int, int]]:
    """Yield ascending seqs of live records as runs in a segment: segment, first position, position after the last.

    The seqs of one run have the same number of digits.
    """
    at = 0
    while at < len(seqs):
        seq = seqs[at]
        segment = topic.segment_of(seq)
        first, stop = segment.first, at + 1
        upto = min(len(seqs), at + segment.end - seq, at + 10 ** len(str(seq)) - seq)
        if seqs[upto - 1] - seq == upto - 1 - at:
            stop = upto  # without a hole
        while stop < upto and seqs[stop] - seq == stop - at:
            stop += 1
        yield segment, seq - first, seq - first + stop - at
        at = stop


def _need_marks(topic: Topic, seqs: list[int]) -> None:
    """Raise one `Cold` for the marks of all segments that hold one of `seqs`, as far as they are not in memory."""
    needs, end = Needs(), topic.earliest
    for seq in sorted(seqs):
        if end <= seq <= topic.head:
            segment = topic.segment_of(seq)
            end = segment.end
            needs.run(partial(getattr, segment, "marks"))
    needs.check()


def rows(topic: Topic, seqs: list[int]) -> list[bytes]:
    """Return the first of these records, as many as one answer holds, but at least one.

    They are as `record_bytes.with_seq` takes them: `"$tag":"x","$key":"y","$ts":…}`. Raises one `Cold` for all of them,
    or `Damaged`. If `Cold.more` is set, one load cannot fetch all of them: ask for fewer records.
    """
    found: list[bytes] = []
    needs, left = Needs(), MAX_BATCH_BYTES
    for segment, low, high in runs(topic, seqs):
        if needs.more or left <= 0:
            break
        try:
            columns = segment.columns
        except Cold:
            needs.add(Cold([segment.need(low, high, max_bytes=MAX_BATCH_BYTES)]))
            continue
        ends = columns.offsets[low : high + 1].tolist()
        base = ends[0]
        left -= ends[-1] - base
        if left < 0:
            ends = ends[: max(bisect_right(ends, ends[-1] + left), 1 if found else 2)]
            high = low + len(ends) - 1
        try:
            blob = bytes(segment.read(low, high))
        except Cold as cold:
            needs.add(cold)
            continue
        skip = base - record_bytes.seq_bytes(segment.first + low)
        fields: Iterable[bytes] = [blob[a - skip : b - base - 1] for a, b in pairwise(ends)]
        if columns.extras:
            keys = map(columns.key_at, range(low, high))
            fields = [
                row if key is None else KEY_FIELD % (encode_json(key), row)
                for key, row in zip(keys, fields, strict=True)
            ]
        if columns.tags is not None:
            name_of, tag_ids = columns.tag_names.name_of, columns.tags[low:high].tolist()
            parts = {one: TAG_FIELD % encode_json(name_of(one)) if one else b"" for one in set(tag_ids)}
            fields = map(add, map(parts.__getitem__, tag_ids), fields)
        found += fields
    needs.check()
    return found


def fitting(topic: Topic, seqs: list[int]) -> dict[int, bytes]:
    """Return the first of these records by seq, as many as one answer holds and one load fetches. Raises `Cold`."""
    # Bound: every round but the last halves the number of seqs.
    while True:
        try:
            return dict(zip(seqs, rows(topic, seqs), strict=False))
        except Cold as cold:
            if not cold.more or len(seqs) == 1:
                raise
            seqs = seqs[: len(seqs) // 2]


# --- the list of jobs


def page(topic: Topic, queue: Leases, state: JobState | None, after: int, limit: int) -> tuple[list[bytes], int | None]:
    """Return rendered jobs behind `after`, and the cursor of the next page, if any. Raises `Cold` like a read."""
    seqs = _seqs(topic, queue, state, after, limit + 1)
    found = fitting(topic, seqs[:limit])
    rows = [_row(topic, queue, seq, fields) for seq, fields in found.items()]
    return rows, seqs[len(found) - 1] if len(found) < len(seqs) else None


def _seqs(topic: Topic, queue: Leases, state: JobState | None, after: int, limit: int) -> list[int]:
    if state in ("in_flight", "delayed"):
        held = (seq for seq, job in queue.leases.items() if not job.term.ended)
        places = (held, queue.leaving) if state == "in_flight" else (queue.resting, queue.later, queue.exhausted)
        return nsmallest(limit, (seq for seq in chain(*places) if seq > after))
    found = (
        segment.first + at
        for segment, low, high in topic.spans(max(after + 1, topic.earliest), topic.head + 1)
        if segment.live
        for at in segment.live_positions(low, high).tolist()
        if state is None or state_of(queue, segment.first + at) == state
    )
    return list(islice(found, limit))


def state_of(queue: Leases, seq: int) -> JobState:
    if queue.held(seq) is not None or seq in queue.leaving:
        return "in_flight"
    return "delayed" if seq in queue.resting or seq in queue.later or seq in queue.exhausted else "ready"


def _row(topic: Topic, queue: Leases, seq: int, fields: bytes) -> bytes:
    terms, state = terms_at(topic, seq), state_of(queue, seq)
    job = queue.find(seq) or Job(seq)
    shown = b'"state":"%b","deliveries":%d,"priority":%d,' % (state.encode(), job.deliveries, terms.priority)
    if seq in queue.keys.blocked:
        shown += b'"blocked":true,'
    if state == "delayed" and seq not in queue.exhausted:
        shown += b'"deliver_at":%d,' % (job.due_ms if seq in queue.resting else queue.later[seq] >> 4)
    elif state == "in_flight":
        lease = encode_json(job.node), job.lease_id.encode(), job.deadline_ms
        shown += b'"node":%b,"lease_id":"%b","deadline":%d,' % lease
        if job.progress is not None:
            shown += b'"progress":%b,' % encode_json(job.progress)
    return record_bytes.with_seq(seq, shown + reasons_field(queue.reasons_of(job)) + fields)


def reasons_field(reasons: Sequence[Reason]) -> bytes:
    return b'"reasons":%b,' % encode_json(reasons) if reasons else b""
