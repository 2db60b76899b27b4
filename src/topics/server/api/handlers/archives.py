"""Handler of archive reports, and the archive field of a topic's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.write import archived
from topics.model.unknown_fields import RequestDecoder
from topics.model.wire import ArchivedAnswer, ArchivedRequest, ArchiveStanding, check_u64
from topics.server.http.messages import Answer
from topics.server.loop.answer import json_answer, performance, when_done

if TYPE_CHECKING:
    from topics.engine.state.topic import Topic
    from topics.engine.write.commit import Ticket
    from topics.server.api.route import Call
    from topics.server.api.services import Services
    from topics.server.http.messages import Request, Response

_decode = RequestDecoder[ArchivedRequest](ArchivedRequest).decode


def report(services: Services, call: Call) -> Answer:
    """Record how far an archive has copied a topic."""
    body = _decode(call.request.body, call)
    seq, epoch = check_u64(body.seq, "seq"), check_u64(body.epoch, "epoch")
    trimmed = check_u64(body.trimmed_seq, "trimmed_seq")

    def encode(ticket: Ticket, request: Request) -> Response:
        done: archived.Reported = ticket.result
        return json_answer(
            200,
            ArchivedAnswer(
                done.topic.name, done.topic.epoch, done.archived, done.head, done.moved, performance(request, ticket)
            ),
        )

    ticket = services.engine.archives.report(call.params["topic"], seq=seq, epoch=epoch, trimmed=trimmed)
    return when_done(ticket, call.request, encode)


def standing(topic: Topic, now_ms: int) -> ArchiveStanding | None:
    """Return the archive field of the topic's state; None without an archive."""
    found = archived.standing(topic, now_ms)
    return None if found is None else ArchiveStanding(found.unarchived, found.overdue, found.evicted)
