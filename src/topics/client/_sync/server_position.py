# Generated from _async/server_position.py by tools/unasync.py. Do not edit.
"""The position of a reader, kept by the server as a named consumer."""

from __future__ import annotations

import time
from contextlib import suppress

from topics.client._sync.transport import UNLIMITED, Transport, consumer_path
from topics.client.consumers import ConsumerInfo, ServerCursor
from topics.client.errors import ConsumerNotFound, EpochMismatch, TopicNotFound
from topics.client.items import Position
from topics.model.consumer import ConsumerPut


class ServerPosition:
    """What `follow` makes of a `ServerCursor`: `load` and `save` of one consumer of one topic."""

    def __init__(self, http: Transport, topic: str, cursor: ServerCursor) -> None:
        self._http = http
        self._path = consumer_path(topic, cursor.name)
        self._settings = cursor.settings()
        self._expire_s = 0.0
        self._used_at = time.monotonic()

    def load(self) -> Position | None:
        """Return the position of the consumer, or None if it is new."""
        created = False
        if self._settings:
            put = self._http.call("PUT", self._path, ConsumerPut, body=self._settings, retries=0)
            created = put.created
        try:
            found = self._http.call("GET", self._path, ConsumerInfo, retries=0)
        except ConsumerNotFound:
            return None
        self._expire_s = found.expire_ms / 1000
        return None if created else Position(found.seq, found.epoch)

    def save(self, position: Position) -> None:
        """Store a position, however long the server is away.

        The consumer ends with its topic. If the topic was deleted or created again, the next read reports that.
        """
        body = {"seq": position.seq, "epoch": position.epoch}
        with suppress(EpochMismatch, TopicNotFound):
            self._http.call("PUT", self._path, ConsumerPut, body=body, retries=UNLIMITED)
        self._used_at = time.monotonic()

    def keep(self, position: Position) -> None:
        """Store a position again if the server would soon forget the consumer for not being used."""
        if self._expire_s and time.monotonic() - self._used_at > self._expire_s / 4:
            self.save(position)
