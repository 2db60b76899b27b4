"""The audit topic: who has changed what, when and from where. The server alone writes it.

A record is staged behind the change, in the same turn: both are in one write of the log. It is stored in the topic
`$audit`, which no list, pattern or router has: a key with `admin` reads it by its name.

    {"who": "deploy", "from": "10.0.0.7", "what": "drop topic", "name": "orders", …}
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from topics import logs
from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.model.names import AUDIT
from topics.model.records import NewRecord, WriteRequest
from topics.model.topic import ConfigPatch

log = logs.Log("audit")

CONFIG = ConfigPatch(durability="fsync", cap_bytes=256 << 20)


class Audit:
    def __init__(self, engine: Engine, *, enabled: bool) -> None:
        self._engine = engine
        self._enabled = enabled  # a server without keys does not know who asks

    def note(self, what: str, name: str, who: str, address: str = "", **detail: Any) -> None:
        """Record a change. A failure is logged: the change itself is staged already."""
        if not self._enabled:
            return
        data = {"who": who, "from": address, "what": what, "name": name, **detail}
        try:
            if AUDIT not in self._engine.topics:
                self._engine.create_system_topic(AUDIT, CONFIG)
            record = NewRecord(Raw(msgspec.json.encode(data)), tag=what)
            self._engine.append(AUDIT, WriteRequest([record]))
        except TopicsError as error:
            log.error("not_audited", reason=error.message, what=what, who=who)
