"""Watching as a named consumer: look up, begin or commit the positions before the subscriptions begin."""

from __future__ import annotations

from msgspec import structs

from topics.engine.engine import Engine
from topics.engine.write.commit import Ticket
from topics.model.watch import TopicOptions, check_by_name, check_watched


def open_positions(engine: Engine, topics: dict[str, TopicOptions], *, max_topics: int, lenient: bool) -> Ticket:
    """Commit what the options say, then look up the positions of their consumers.

    Ends with the options of all topics, in which a consumer has its position as `from_seq`, once the commits are in the
    log. Raises errors of the request before anything is changed, except an `epoch_mismatch` or a seq beyond the head.
    """
    check_watched(topics, max_topics=max_topics)
    consumed = {name: options for name, options in topics.items() if options.by_name}
    for name, options in consumed.items():
        check_by_name(name, options)
    if lenient:
        topics = {name: options for name, options in topics.items() if name not in consumed or engine.find(name)}
        consumed = {name: options for name, options in consumed.items() if name in topics}
    for name in consumed:
        engine.topic(name)
    tickets = {name: _open(engine, name, options) for name, options in consumed.items()}
    opened, waiting = Ticket(), len(tickets)

    def done(_: Ticket) -> None:
        nonlocal waiting
        waiting -= 1
        if waiting <= 0:
            error = next((ticket.error for ticket in tickets.values() if ticket.error is not None), None)
            found = {} if error else {name: _at(options, tickets[name]) for name, options in consumed.items()}
            opened.resolve(topics | found, error)

    if not tickets:
        done(opened)
    for ticket in list(tickets.values()):
        ticket.on_done(done)
    return opened


def _open(engine: Engine, name: str, options: TopicOptions) -> Ticket:
    assert options.consumer is not None
    return engine.consumers.open(name, options.consumer, commit=options.commit, epoch=options.epoch)


def _at(options: TopicOptions, ticket: Ticket) -> TopicOptions:
    return structs.replace(options, from_seq=ticket.result.seq, commit=False, epoch=None)
