"""The services of a running server that route handlers use, and what they may read before the data is recovered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import field

from topics import __version__
from topics.clock import Clock
from topics.engine.engine import Engine
from topics.engine.state.topic import Topic
from topics.errors import Code, TopicsError
from topics.server.access.audit import Audit
from topics.server.access.caller import Caller, Quotas
from topics.server.access.key_ring import Failures, KeyRing
from topics.server.http.messages import Request
from topics.server.http.server import HttpServer
from topics.server.loop.processes import ReplicaLooks
from topics.server.loop.samples import QueueSamples, ReaderSamples, Samples
from topics.server.loop.sliced_work import SharedAnswers
from topics.server.loop.storage import Storage
from topics.server.push.dispatcher import PushServices
from topics.server.push.jobs import JobWaiters
from topics.server.push.sessions import Sessions
from topics.webhooks import Webhook

if TYPE_CHECKING:
    from topics.engine.durable.replication import Replication
    from topics.engine.durable.standby import Standby
    from topics.server.loop.replication import ReplicaService
    from topics.server.loop.standby import StandbyService

RETRY_AFTER_MS = 1000


class Startup:
    """What requests may read while the log is replayed. Nothing here belongs to the engine.

    Only the thread that recovers the data writes `progress`. It assigns a new float, so any thread may read it.
    """

    def __init__(self, clock: Clock, paths: Set[str], *, console: bool = True) -> None:
        self._paths = paths  # of all routes that are served
        self.console = console  # whether the console is served
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self.progress = 0.0  # share of the log that has been replayed, 0 to 1
        self.http: HttpServer | None = None  # the transport whose connections and requests metrics count

    @cached_property
    def document(self) -> bytes:
        """The OpenAPI document. `tools/docs/openapi.py` generates its file from the route table."""
        document = msgspec.json.decode(Path(__file__).with_name("openapi.json").read_bytes())
        document["info"]["version"] = __version__
        document["paths"] = {path: row for path, row in document["paths"].items() if path in self._paths}
        return msgspec.json.encode(document) + b"\n"

    def requests_total(self) -> int:
        return 0 if self.http is None else self.http.requests_total

    def uptime_ms(self) -> int:
        return (self._clock.monotonic_ns() - self._started_ns) // 1_000_000

    def not_ready(self) -> TopicsError:
        return TopicsError(
            Code.NOT_READY,
            "the log is being replayed",
            detail={"replay_progress": self.progress},
            retry_after_ms=RETRY_AFTER_MS,
        )


MAX_ANSWERS = 1024
MAX_REQUEST_BYTES = 256
MAX_ANSWER_BYTES = 1024

Marks = tuple[int, int, int, int, object]


# The rendered answer to a plain `diff`, in two halves: the time taken goes between them.
CachedAnswer = tuple[Topic, Marks, bytes, bytes]


def marks_of(topic: Topic) -> Marks:
    """Return values that change with everything a plain read depends on, except the time (see `PollCache.keep`)."""
    return topic.head, topic.count, topic.earliest, topic.evict_floor, topic.config


class PollCache:
    """Answers to polls: readers that wait at the head of a topic send the same request again and again.

    The key is the topic's name and the bytes of the request. An answer stays valid while the topic has the same marks
    as when it was read: then nothing was written, evicted or deleted since, and only the time taken differs. The cache
    is cleared when it is full.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, bytes], CachedAnswer] = {}

    def find(self, name: str, body: bytes) -> CachedAnswer | None:
        if len(body) > MAX_REQUEST_BYTES:  # hashing 64 MiB takes 50 ms
            return None
        cached = self._answers.get((name, body))
        if cached is None:
            return None
        topic, marks, _, _ = cached
        if topic.changing or topic.gone or marks != marks_of(topic):
            del self._answers[name, body]
            return None
        return cached

    def keep(self, topic: Topic, body: bytes, before: bytes, after: bytes) -> None:
        """Keep a small answer. Records with a TTL expire without a change of the marks, so such a topic is skipped."""
        if len(body) > MAX_REQUEST_BYTES or len(before) > MAX_ANSWER_BYTES or topic.config.ttl_ms:
            return
        if len(self._answers) >= MAX_ANSWERS:
            self._answers.clear()
        self._answers[topic.name, body] = topic, marks_of(topic), before, after


class Services(PushServices, frozen=True, kw_only=True, eq=False):
    engine: Engine  # of the runtime, without the second attribute lookup: for hot paths
    startup: Startup
    quotas: Quotas
    poll_cache: PollCache
    samples: Samples
    queue_samples: QueueSamples
    reader_samples: ReaderSamples
    shared_answers: SharedAnswers
    sessions: Sessions
    job_waiters: JobWaiters
    keys: KeyRing
    failures: Failures
    webhooks: Mapping[str, Webhook]  # by topic
    audit: Audit
    authenticate: Callable[[Request, bytes], Caller] | None  # None on a server without keys
    storage: Storage | None  # None without a data directory
    replica: ReplicaService | None = None
    standby: StandbyService | None = None
    looks: ReplicaLooks
    # Topics with metrics of their own, by the prefixes of a key.
    named_topics: dict[tuple[str, ...], frozenset[str]] = field(default_factory=dict)

    @property
    def replication(self) -> Replication | None:
        """The uploads of a writer to its replica."""
        return None if self.replica is None else self.replica.replication

    @property
    def following(self) -> Standby | None:
        """What a standby follows."""
        return None if self.standby is None else self.standby.standby

    def check_writer(self) -> None:
        """Raise `not_writer` if the server is a standby."""
        if self.standby is not None:
            raise self.standby.not_writer()

    def check_ready(self) -> None:
        if self.runtime.draining:
            raise TopicsError(Code.SHUTTING_DOWN, "the server is stopping", retry_after_ms=1000)
