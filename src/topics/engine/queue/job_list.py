"""Lists of jobs: a page of the jobs in one state, or of all jobs, in the order of the log."""

from __future__ import annotations

from heapq import nsmallest
from itertools import chain, islice

import msgspec

from topics.engine import retention
from topics.engine.queue import pick
from topics.engine.queue.verbs import expire
from topics.engine.state.jobs.job import Job
from topics.engine.state.jobs.leases import Leases
from topics.engine.state.topic import Topic
from topics.model.queue import JobState
from topics.model.record_bytes import with_fields
from topics.model.records import MAX_BATCH_BYTES
from topics.storage.segments.cold import Cold

_encode_json = msgspec.json.encode


def expire_and_list(
    topic: Topic, *, state: JobState | None, after: int, limit: int, now_ms: int
) -> tuple[list[bytes], int | None]:
    """Expire up to `now_ms`, then return rendered jobs behind `after`, and the cursor of the next page, if any.

    Raises `Cold` like any read.
    """
    queue = expire(topic, now_ms)
    return retention.read_past(topic, lambda: _page(topic, queue, state, after, limit))


def _page(
    topic: Topic, queue: Leases, state: JobState | None, after: int, limit: int
) -> tuple[list[bytes], int | None]:
    # Bound: every round but the last halves `limit`.
    while True:
        seqs = _seqs(topic, queue, state, after, limit + 1)
        try:
            page = seqs[: pick.within_bytes(topic, seqs[:limit], MAX_BATCH_BYTES)]
            rows = [_row(topic, queue, seq, row) for seq, row in zip(page, pick.rows(topic, page), strict=True)]
        except Cold as cold:
            if not cold.more or limit == 1:
                raise
            limit //= 2  # a shorter page; the next one continues behind it
        else:
            return rows, page[-1] if len(page) < len(seqs) else None


def _seqs(topic: Topic, queue: Leases, state: JobState | None, after: int, limit: int) -> list[int]:
    if state in ("in_flight", "delayed"):
        held = (seq for seq, job in queue.leases.items() if not job.term.ended)
        places = (held, queue.leaving) if state == "in_flight" else (queue.resting, queue.later)
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
    if queue.is_out(seq):
        return "in_flight"
    return "delayed" if seq in queue.resting or seq in queue.later else "ready"


def _row(topic: Topic, queue: Leases, seq: int, stored: pick.StoredRecord) -> bytes:
    terms, state = pick.terms_at(topic, seq), state_of(queue, seq)
    job = queue.find(seq) or Job(seq)
    shown = b'"state":"%b","deliveries":%d,"priority":%d,' % (state.encode(), job.deliveries, terms.priority)
    if state == "delayed":
        shown += b'"deliver_at":%d,' % (job.due_ms or terms.due_ms)
    elif state == "in_flight":
        lease = _encode_json(job.node), job.lease_id.encode(), job.deadline_ms
        shown += b'"node":%b,"lease_id":"%b","deadline":%d,' % lease
    return with_fields(stored.row, seq, shown + stored.tag)
