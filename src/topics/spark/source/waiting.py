"""Wait until one of many topics changes, with a watch instead of repeated requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from os.path import commonprefix

from topics.client import Client
from topics.client.call import EVENT_STREAM, Request, with_query
from topics.client.errors import TopicsError
from topics.client.streams import EventParser
from topics.model.watch import WatchCreated

MAX_NAMES = 256  # the default limit of a server for one watch
HEARTBEAT_MS = 1000  # a thread notices between two heartbeats that its watch is closed
SILENCE_S = 10.0  # the connection is lost if there was no heartbeat for so long
LOOK_AGAIN_S = 10.0  # for changes that a watch does not report, such as those of a lake
POLL_S = 0.1  # if a server refuses the watch
NEWS = ("record", "tombstone", "topic-deleted", "error")


class TopicsWatch:
    """Reports once that a topic has changed since the watch was created. A change before that is not reported."""

    def __init__(self, client: Client, names: Iterable[str]) -> None:
        """`names` may end in `*`, for all present and future topics with a prefix."""
        listed = sorted(names)
        if len(listed) > MAX_NAMES:
            listed = [f"{commonprefix(listed)}*"]  # noqa: RUF071 (a prefix of characters is wanted)
        self._changed = threading.Event()
        self._is_closed = False
        self._until_s = time.monotonic() + LOOK_AGAIN_S
        body = {
            "topics": {name: {"tail": True} for name in listed},
            "include_data": False,
            "heartbeat_ms": HEARTBEAT_MS,
        }
        try:
            path = with_query("/v0/watch", lenient=True)
            session = client.call("POST", path, WatchCreated, body=body)
        except TopicsError:  # a key that may not watch a prefix, or too many sessions
            self._until_s = 0.0
        else:
            threading.Thread(target=self._follow, args=(client, session.stream_url), daemon=True).start()

    def wait(self, ms: int) -> bool:
        """Return whether a topic may have changed, after `ms` at the latest."""
        if not self._until_s:
            time.sleep(POLL_S)
        return self._changed.wait(ms / 1000 if self._until_s else 0) or time.monotonic() > self._until_s

    def close(self) -> None:
        self._is_closed = True

    def _follow(self, client: Client, path: str) -> None:
        parser = EventParser()
        try:
            # A connection of its own, so that the client stays free for the thread that owns it.
            with client.opened(Request("GET", path, accept=EVENT_STREAM), timeout_s=SILENCE_S) as response:
                while not self._is_closed and (chunk := response.read1()):
                    if any(event.name in NEWS for event in parser.feed(chunk)):
                        break
        except TopicsError:
            pass  # the reader asks the server again, and reports its errors
        finally:
            self._changed.set()
