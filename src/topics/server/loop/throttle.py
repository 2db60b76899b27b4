"""The elastic throttle: measures how late the event loop runs, and makes the server yield before it overloads.

Pressure is how late the event loop runs: the time between the moment a timer was due and the moment it ran. Each step
of the ladder gives up latency to keep the data flowing; no step gives up data.

    CALM      nothing is held back, nothing is sorted: the state that must cost nothing
    COALESCE  pushes are gathered for a few ms, so that fewer and larger frames go out
    STRETCH   commits are gathered for a few ms, so that fewer and larger writes go to the log
    PAUSE     topics below priority zero are not pushed to watchers until their age has lifted them
    REFUSE    writes and reads are answered with 429, those of the least wanted topics first

A single late timer is no pressure: a step is entered when several samples in a row pass its threshold, and left when
they all stay below half of it, so that a server at a threshold does not change steps all the time. `Throttle.pressed`
is the only flag that hot paths test. While it is false, only the sampling timer runs here.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum

from topics import logs
from topics.engine.delays import PRESSED_COMMIT_MS
from topics.engine.state.topic import Topic
from topics.engine.write.append import Prepared
from topics.engine.write.commit import Ticket
from topics.errors import Code, TopicsError
from topics.model.records import WriteRequest
from topics.server.http.messages import Answer, Request, Response
from topics.server.loop.answer import when_done
from topics.server.loop.runtime import Runtime

log = logs.Log("throttle")

AUTO_PRIORITY = 500
PRIORITY_HALF_LIFE_MS = 30_000
PRIORITY_FORGOTTEN_MS = 300_000
AGE_BOOST_PER_S = 100
MAX_AGE_BOOST = 1000

SAMPLE_MS = 100
SAMPLES = 4  # in a row that must agree
MIN_RETRY_MS, MAX_RETRY_MS = 500, 5_000

NO_WAIT = b'"throttle_wait_ms":0.0'
Encode = Callable[["Ticket", Request], Response]


def base_priority(topic: Topic, now_ms: int) -> int:
    """Return the manual priority; else 500, halved every 30 s since the last read, and 0 after 5 minutes."""
    config = topic.config
    if config.priority is not None:
        return config.priority
    if not config.auto_priority or topic.last_read_ts is None:
        return 0
    idle_ms = max(now_ms - topic.last_read_ts, 0)
    if idle_ms >= PRIORITY_FORGOTTEN_MS:
        return 0
    return int(AUTO_PRIORITY * 0.5 ** (idle_ms / PRIORITY_HALF_LIFE_MS))


def age_boost(waited_ms: int) -> int:
    """Return what is added for waiting: the lowest priority reaches zero in ten seconds, so that no topic starves."""
    return min(max(waited_ms, 0) * AGE_BOOST_PER_S // 1000, MAX_AGE_BOOST)


def effective_priority(topic: Topic, now_ms: int) -> int:
    """Return the priority that decides the order under pressure: the base plus the age boost of waiting records."""
    base = base_priority(topic, now_ms)
    return base if topic.waits_since_ms is None else base + age_boost(now_ms - topic.waits_since_ms)


class PressureStep(IntEnum):
    CALM = 0
    COALESCE = 1
    STRETCH = 2
    PAUSE = 3
    REFUSE = 4


class Pressure:
    """The ladder. `refuse_ms` is the lag of its last step; 0 for a server that never enters a step."""

    __slots__ = ("_recent", "_thresholds", "lag_ms", "step")

    def __init__(self, refuse_ms: int) -> None:
        self._thresholds = tuple(refuse_ms * part for part in (0.0, 0.05, 0.15, 0.4, 1.0))
        self._recent: deque[float] = deque(maxlen=SAMPLES)
        self.lag_ms = 0.0  # the lowest of the last samples
        self.step = PressureStep.CALM

    def sample(self, lag_ms: float) -> bool:
        """Add a measurement. Return whether the step changed."""
        self._recent.append(lag_ms)
        if len(self._recent) < SAMPLES or not self._thresholds[-1]:
            return False
        self.lag_ms, worst_ms = min(self._recent), max(self._recent)
        # The highest step whose threshold every sample has passed. A step is left if no sample passes half of its own.
        step = max(step for step in PressureStep if self.lag_ms >= self._thresholds[step])
        if step < self.step:
            stays = max(step for step in PressureStep if worst_ms >= self._thresholds[step] / 2)
            step = max(step, min(self.step, stays))
        changed, self.step = step != self.step, step
        return changed

    def pauses(self, topic: Topic, now_ms: int) -> bool:
        """Return whether records of this topic are not pushed now."""
        return self.step >= PressureStep.PAUSE and effective_priority(topic, now_ms) < 0

    def check(self, topic: Topic | None, now_ms: int) -> None:
        """Raise `throttled` for a request that must wait. Up to twice the threshold, topics that are read pass."""
        if self.step < PressureStep.REFUSE:
            return
        priority = 0 if topic is None else base_priority(topic, now_ms)
        if priority >= AUTO_PRIORITY and self.lag_ms < 2 * self._thresholds[PressureStep.REFUSE]:
            return
        raise TopicsError(
            Code.THROTTLED,
            f"the server runs up to {max(self._recent, default=0.0):.0f} ms late; try again later",
            retry_after_ms=self.retry_after_ms(priority),
        )

    def retry_after_ms(self, priority: int) -> int:
        """Return how long a client should wait: the lower the priority, the longer."""
        patience = 1 + max(AUTO_PRIORITY - priority, 0) / 1000
        return int(min(max(self.lag_ms * 4 * patience, MIN_RETRY_MS), MAX_RETRY_MS))


class Throttle:
    """Holds the step of the pressure ladder, and applies each change of it."""

    def __init__(self, runtime: Runtime, *, refuse_ms: int) -> None:
        self.pressed = False  # whether the server runs late
        self.pressure = Pressure(refuse_ms)
        self.listeners: list[Callable[[], None]] = []  # called with every sample under pressure, and when it ends
        self._runtime = runtime
        self._due_ns = 0
        self._asked_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._schedule = runtime.engine.commits.schedule

    def begin(self) -> None:
        self._due_ns = self._runtime.clock.monotonic_ns() + SAMPLE_MS * 1_000_000
        self._timer = self._runtime.call_later(SAMPLE_MS, self._sample)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self, name: str) -> None:
        engine = self._runtime.engine
        self.pressure.check(engine.topics.get(name), engine.clock.now_ms())

    def append(
        self, name: str, write: WriteRequest, request: Request, encode: Encode, prepared: Prepared | None
    ) -> Answer:
        """Append while the server is under pressure. Raise if the topic has too low a priority for that."""
        if not write.disable_backpressure:
            self.check(name)
        ticket = self._runtime.engine.append(name, write, prepared)
        staged_ns = time.perf_counter_ns()

        def finish(ticket: Ticket, request: Request) -> Response:
            waited_ns = max(time.perf_counter_ns() - staged_ns - ticket.wal_ns - ticket.sync_ns, 0)
            response = encode(ticket, request)
            assert isinstance(response.body, bytes)
            # `encode` renders a wait of 0, as for every write without pressure. Replace it with the real one.
            start, found, end = response.body.rpartition(NO_WAIT)
            response.body = b"".join((start, found[:-3], b"%.3f" % (waited_ns / 1e6), end))
            return response

        return when_done(ticket, request, finish)

    def _sample(self) -> None:
        """Measure one whole turn, too: a timer that fires in step with the turns is never late."""
        self._asked_ns = self._runtime.clock.monotonic_ns()
        self._runtime.loop.call_soon(self._measured)

    def _measured(self) -> None:
        turn_ns = self._runtime.clock.monotonic_ns() - self._asked_ns
        self.take(max(turn_ns, self._asked_ns - self._due_ns, 0) / 1e6)
        if self._timer is not None:
            self.begin()

    def take(self, lag_ms: float) -> None:
        was = self.pressed
        if self.pressure.sample(lag_ms):
            step, window_ms = self.pressure.step, PRESSED_COMMIT_MS[self.pressure.step]
            self.pressed = step is not PressureStep.CALM
            commits, loop = self._runtime.engine.commits, self._runtime.loop
            if window_ms:
                commits.schedule = lambda flush: loop.call_later(window_ms / 1000, flush)
            else:
                commits.schedule = self._schedule
            log.info("pressure", step=step.name.lower(), lag_ms=round(self.pressure.lag_ms, 1))
        if was or self.pressed:
            for listener in self.listeners:
                listener()
