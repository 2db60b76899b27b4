"""Archive marks: how much of a topic an archive reports to have.

Retention goes by it if the topic holds records for its archive (`archive: {"hold": true}`). An archive that deletes
archived records from the topic reports that beforehand (`trimmed`): a delete leaves no trace, and readers of topic and
archive together must know which missing seqs the archive has. A report itself evicts nothing: TTL and caps evict more
when they are enforced the next time, so a replay ends where the live server was.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import Struct

from topics.engine import retention
from topics.engine.state import snapshot_parts
from topics.engine.state.topic import Topic
from topics.engine.state.topics import State
from topics.engine.write.commit import Ticket
from topics.engine.write.staging import Staging
from topics.errors import Code, TopicsError, invalid
from topics.model.wire import ArchiveStanding
from topics.storage.log import entry as entries


@entries.known
class Archived(Struct, array_like=True):
    """An archive has all records up to `seq`, and deletes those up to `trimmed` because it has them."""

    kind: ClassVar[int] = entries.ARCHIVED
    topic_id: int
    seq: int
    trimmed: int = 0  # not in frames of earlier versions


class Reported(Struct):
    """The marks of the topic after a report; `moved` is whether the report raised one."""

    topic: Topic
    archived: int
    head: int
    moved: bool


def report(staging: Staging, name: str, *, seq: int, epoch: int, trimmed: int = 0) -> Ticket:
    """Note that an archive has all records up to `seq`, and is about to delete those up to `trimmed`.

    Neither ever moves back. Ends with `Reported`.
    """
    topic = staging.topic(name)
    check_epoch(topic, epoch)
    check_seq(topic, seq)
    if trimmed > seq:
        what = f"seqs up to {trimmed} cannot be trimmed: {seq} is the last one archived"
        raise invalid(what, field="trimmed_seq")
    if seq <= topic.archived and trimmed <= topic.trimmed:
        return Ticket.of(Reported(topic, topic.archived, topic.head, False))
    entry = Archived(topic.topic_id, seq, trimmed)

    def take_effect(_: Ticket) -> Reported:
        moved = seq > topic.archived or trimmed > topic.trimmed
        archived(topic, entry)
        return Reported(topic, topic.archived, topic.head, moved)

    return staging.stage(topic, [entry], take_effect)


def check_epoch(topic: Topic, epoch: int) -> None:
    """Raise `epoch_mismatch` if a request means an earlier or later topic of the same name."""
    if epoch != topic.epoch:
        raise TopicsError(
            Code.EPOCH_MISMATCH,
            f'topic "{topic.name}" is not the one that was meant: its epoch is {topic.epoch}, not {epoch}',
            detail={"topic": topic.name, "epoch": topic.epoch},
        )


def check_seq(topic: Topic, seq: int, *, field: str = "seq") -> None:
    if seq > topic.head:
        raise invalid(f"seq {seq} is beyond the head of the topic ({topic.head})", field=field)


def archived(topic: Topic, entry: Archived) -> None:
    topic.archived = max(topic.archived, entry.seq)
    topic.trimmed = max(topic.trimmed, entry.trimmed)


def standing(topic: Topic, now_ms: int, *, exact: bool = True) -> ArchiveStanding | None:
    """Return how far the archive is behind; None for a topic without an archive. If not `exact`, read nothing."""
    if not topic.archived and topic.config.archive is None:
        return None
    unarchived = retention.live_between(topic, topic.archived + 1, topic.head + 1, exact=exact)[0]
    overdue = 0
    if topic.holds and topic.config.ttl_ms:
        upto = retention.expired_before(topic, now_ms - topic.config.ttl_ms, exact=exact)
        overdue = retention.live_between(topic, topic.archived + 1, upto, exact=exact)[0]
    return ArchiveStanding(unarchived, overdue, topic.evicted_unarchived)


def recovered(topic: Topic) -> None:
    """Lower the marks to the head: after damage the log may lack records that were archived."""
    topic.archived = min(topic.archived, topic.head)
    topic.trimmed = min(topic.trimmed, topic.head)


def _save(state: State, topic: Topic) -> tuple[int, int, int] | None:
    if not (topic.archived or topic.evicted_unarchived):
        return None
    return topic.archived, topic.evicted_unarchived, topic.trimmed


def _load(state: State, topic: Topic, raw: msgspec.Raw) -> None:
    topic.archived, topic.evicted_unarchived, *trimmed = msgspec.msgpack.decode(raw, type=list[int])
    topic.trimmed = trimmed[0] if trimmed else 0  # earlier versions did not keep it


snapshot_parts.TOPIC_PARTS.append(snapshot_parts.Part("archive", _save, _load))
