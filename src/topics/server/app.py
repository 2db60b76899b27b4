"""The wiring of a server: builds its parts, starts them in order, and stops them in the reverse order."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from topics import logs
from topics.clock import Clock
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.state.topics import SegmentLimits, State
from topics.errors import Code, TopicsError
from topics.installation import is_installed
from topics.model.access import StoredKey
from topics.model.records import Limits
from topics.server.access.audit import Audit
from topics.server.access.caller import Quotas
from topics.server.access.key_ring import Failures, KeyRing
from topics.server.api.request_handler import Guard, RequestHandler, protected
from topics.server.api.route import Route, RouteTable
from topics.server.api.route_table import ROUTES
from topics.server.api.services import PollCache, Services, Startup
from topics.server.http.browser_origin import Pages
from topics.server.limits.budget import MemoryBudget, budget_bytes_of
from topics.server.limits.loop_holds import LoopHolds
from topics.server.limits.os_limits import resident_bytes
from topics.server.loop.budget_upkeep import Upkeep
from topics.server.loop.forwarding import Forwarding, Scheduling
from topics.server.loop.processes import Processes, ReplicaLooks
from topics.server.loop.runtime import Runtime, Ticker
from topics.server.loop.samples import Column, QueueSamples, ReaderSamples, Samples
from topics.server.loop.sliced_work import SharedAnswers, Slices
from topics.server.loop.storage import Storage, open_directory
from topics.server.loop.throttle import Throttle
from topics.server.push.dispatcher import Dispatcher
from topics.server.push.jobs import JobWaiters
from topics.server.push.sessions import Sessions
from topics.storage.log.wal import WalStats

if TYPE_CHECKING:
    from topics.server.loop.replication import ReplicaService
    from topics.server.loop.standby import StandbyService
    from topics.storage.replica.bucket import Bucket
    from topics.storage.replica.start import Opened

log = logs.Log("server")

FREE_S = 10  # until the last timers of a state that is no longer served have passed
HERE = ("127.0.0.1", "localhost", "0.0.0.0", "::")  # addresses at which this machine finds the server at 127.0.0.1
EXIT_HALTED = 70  # of a process whose state differs from its log: the next start replays the log


class TopicsApp:
    """One server. Requests are answered from the first moment; `services` exists once the data is recovered."""

    services: Services
    forwarding: Forwarding
    scheduling: Scheduling  # not of a standby
    upkeep: Upkeep

    def __init__(
        self, settings: Settings, clock: Clock, loop: asyncio.AbstractEventLoop, *, more_routes: Sequence[Route] = ()
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.loop = loop
        self.budget = MemoryBudget(budget_bytes_of(settings))
        self.holds = LoopHolds()
        self.quotas = Quotas(settings, self.budget, clock)
        served = [route for route in ROUTES if settings.console or not route.console]
        self.startup = Startup(clock, {route.path for route in served}, console=settings.console)
        routes = RouteTable([*protected(served, Pages.of(settings)), *more_routes])
        token_keys = () if settings.token_keys_file is None else settings.token_keys_file.keys
        self.keys = KeyRing(settings.key_rules(), token_keys, clock)
        self.failures = Failures(clock, settings.max_auth_failures)
        self.webhooks = {} if settings.webhooks_file is None else dict(settings.webhooks_file.keys)
        guard = None
        if self.keys.callers:
            guard = Guard(routes, self.keys, self.quotas, self.failures, clock, probe_auth=settings.probe_auth)
        self.requests = RequestHandler(routes, guard, self.budget, self.startup)
        self.admit = self.requests.admit
        self.handle = self.requests.handle
        self.answer = self.requests.answer
        self.abandon = self.requests.abandon
        self.processes = Processes(self._own_url)
        self._recovered = False
        self._switching: asyncio.Task[None] | None = None
        self.port = settings.port  # the one that the server listens on
        self.stop_server: Callable[[Exception | None], None] = lambda failure: None  # ends the process
        self._datadir = open_directory(settings)  # before the server says that it listens

    def _own_url(self) -> str | None:
        """Return where a query of this machine finds the server; None if it cannot, or nothing can answer it."""
        # Over TLS it would need the certificate of who has signed that of the server.
        is_found = self.settings.tls_cert is None and self.settings.host in HERE and is_installed("duckdb")
        return f"http://127.0.0.1:{self.port}" if is_found else None

    async def start(self) -> None:
        if self.settings.standby and await self._follow():
            return
        await self._write()

    def _new_state(self) -> State:
        settings = self.settings
        segments = SegmentLimits(
            max_events=settings.segment_max_events,
            max_bytes=settings.segment_max_bytes,
            max_age_ms=settings.segment_max_age_ms,
        )
        return State(segments=segments, max_keys=settings.max_idempotency_keys)

    async def _write(self, taken: tuple[Bucket, Opened] | None = None) -> None:
        """Serve as the writer. A standby has `taken` the replica over, and left its directory."""
        settings, state = self.settings, self._new_state()
        storage = replica = None
        if self._datadir is not None:
            if taken is not None:
                from topics.server.loop.replication import ReplicaService

                await asyncio.to_thread(self._datadir.open)
                replica = ReplicaService(settings, self.clock, self.loop, *taken)
            elif settings.replica is not None:
                # Imported here: most servers have no replica, and its modules take 40 ms.
                from topics.server.loop.replication import ReplicaService, address_of

                address = address_of(settings, self.port)
                replica = await ReplicaService.prepare(settings, self.clock, self.loop, self._datadir, address=address)
            on_progress = partial(setattr, self.startup, "progress")
            storage = await Storage.open(settings, self.clock, self.loop, self._datadir, state, on_progress=on_progress)
            if replica is not None:
                await replica.begin(storage, self._datadir)
                replica.on_promote = lambda: self.stop_server(None)
        self.serve(state, storage, replica)
        if taken is not None:
            self.services.audit.note("promotion", "", "server", url=self.settings.advertised_url or "")
        if replica is not None and replica.replication is not None:
            replica.replication.on_fence = self._fence

    def _fence(self, reason: str) -> None:
        """End streams and refuse reads, too: another server has taken over, and this state grows no more."""
        self.requests.fence(reason)
        self.begin_drain()

    async def _follow(self) -> bool:
        """Serve as a standby. Return False if the directory is that of the writer."""
        settings, state = self.settings, self._new_state()
        from topics.server.loop.replication import address_of
        from topics.server.loop.standby import StandbyService

        assert self._datadir is not None, "a replica needs a directory"
        address = address_of(settings, self.port)
        standby = StandbyService(settings, self.clock, self.loop, self._datadir, state, address=address)
        if not await standby.load():
            return False
        standby.on_taken = lambda bucket, opened: self._switch(self._write((bucket, opened)))
        standby.on_load = lambda: self._switch(self._follow())
        self.serve(state, standby=standby)
        return True

    def _switch(self, coming: Coroutine[Any, Any, object]) -> None:
        """Stop serving this state, and serve another one."""

        async def switch() -> None:
            try:
                await self.stop()
                self.budget.reclaimers.clear()  # those of the state that was served
                await coming
                self.loop.call_later(FREE_S, _free)
                log.info("ready")
            except Exception as error:
                self.stop_server(error)

        self.requests.pause()
        self.begin_drain()
        self._switching = self.loop.create_task(switch())

    def serve(
        self, state: State, storage: Storage | None = None, replica: ReplicaService | None = None,
        standby: StandbyService | None = None,
    ) -> None:  # fmt: skip
        """Build the engine and the services for the recovered state. Only the engine may use it from now on."""
        settings, budget = self.settings, self.budget
        limits = Limits(**{name: getattr(settings, name) for name in Limits.__struct_fields__})
        clock = self.clock if standby is None else standby.clock
        engine = Engine(clock=clock, limits=limits, state=state, schedule=self.loop.call_soon)
        # Like a kill: what was acknowledged is in the log, and a snapshot of this state would be wrong.
        engine.commits.on_halt = lambda failure: os._exit(EXIT_HALTED)
        self._follow_keys(state)
        runtime = Runtime(settings, self.clock, self.loop, engine, holds=self.holds)
        self.forwarding = Forwarding(runtime, self.startup.requests_total)
        if standby is None:
            self.scheduling = Scheduling(runtime)
        throttle = Throttle(runtime, refuse_ms=settings.pressure_lag_ms)
        slices = Slices(runtime, self.clock, budget, self.holds)
        dispatcher = Dispatcher(runtime, throttle, budget)
        sessions = Sessions(runtime, budget)
        job_waiters = JobWaiters(runtime, throttle)
        sampled = columns(runtime, dispatcher, throttle, self, storage)
        self.upkeep = Upkeep(runtime, budget, writes=standby is None, on_relief=job_waiters.wake)
        self.services = Services(
            runtime=runtime, engine=engine, startup=self.startup, budget=budget, quotas=self.quotas, throttle=throttle,
            poll_cache=PollCache(), slices=slices, shared_answers=SharedAnswers(slices, budget), dispatcher=dispatcher,
            keys=self.keys, webhooks=self.webhooks,
            failures=self.failures, audit=Audit(engine, enabled=self.requests.guard is not None and standby is None),
            authenticate=None if self.requests.guard is None else self.requests.guard.authenticate,
            sessions=sessions, pattern_waiters=sessions.pattern_waiters, job_waiters=job_waiters,
            samples=Samples(runtime, sampled), queue_samples=QueueSamples(runtime),
            reader_samples=ReaderSamples(runtime), storage=storage, replica=replica, standby=standby,
            looks=ReplicaLooks(self.processes, settings.replica),
        )  # fmt: skip
        if storage is not None:
            storage.begin(engine, slices)
            if settings.console:
                storage.keep_samples(self.services.samples)
        if storage is not None and replica is not None:
            replica.attach(engine)
            storage.before_checkpoint, storage.after_checkpoint = replica.drain, replica.close
        if standby is not None:
            standby.begin(engine, slices)
        self._recovered = True
        self.requests.begin(self.services)
        throttle.begin()
        self.upkeep.begin()
        if settings.console:
            for sampler in self._samplers():
                sampler.begin()

    def _follow_keys(self, state: State) -> None:
        """Take the keys of the data directory, now and with every change. Raise if the server would not ask for one."""
        rows = state.access
        if any(isinstance(row, StoredKey) for row in rows.by_name.values()) and self.requests.guard is None:
            if not self.settings.allow_insecure_no_auth:
                what = "the data directory has API keys and the settings have none: every client could do everything; "
                what += "set TOPICS_API_KEYS or TOPICS_API_KEYS_FILE, or TOPICS_ALLOW_INSECURE_NO_AUTH=1"
                raise TopicsError(Code.FORBIDDEN, what)
        for name in list(self.keys.stored):
            if name not in rows.by_name:
                self.keys.changed(name, None)
        for name, row in rows.by_name.items():
            self.keys.changed(name, row)
        rows.changed.append(self.keys.changed)

    def _samplers(self) -> tuple[Ticker, ...]:
        return self.services.samples, self.services.queue_samples, self.services.reader_samples

    def begin_drain(self) -> None:
        self.processes.end()
        if self._recovered:
            self.services.runtime.begin_drain()

    async def stop(self) -> None:
        """Stop the timers, write what is left, and end the threads. Raise `OSError` if the last snapshot is missing."""
        if self._switching is not None and self._switching is not asyncio.current_task():
            self._switching.cancel()
            await asyncio.gather(self._switching, return_exceptions=True)
        if not self._recovered:
            return
        self._recovered, services = False, self.services
        services.throttle.end()
        for sampler in self._samplers():
            sampler.end()
        self.upkeep.end()
        self.forwarding.stop()
        if services.standby is None:
            self.scheduling.stop()
        services.engine.flush()
        try:
            if services.storage is not None:
                if (save := services.samples.save) is not None:
                    save(services.samples.saved())
                await services.storage.close()
            if services.standby is not None:
                await services.standby.close()
        finally:
            services.runtime.stop()


def _free() -> None:
    """Free a state that is no longer served. Its objects are frozen, see `run.Garbage`, and refer to each other."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def columns(
    runtime: Runtime, dispatcher: Dispatcher, throttle: Throttle, app: TopicsApp, storage: Storage | None
) -> list[Column]:
    """Return the columns of the samples. Reading one takes no longer with more topics or records."""
    engine, quotas, budget, startup = runtime.engine, app.quotas, app.budget, app.startup
    totals, queues = engine.state.totals, engine.queues
    wal = WalStats() if storage is None else storage.wal.stats

    def other_losses() -> int:
        return sum(count for reason, count in totals.lost.by_reason.items() if reason not in ("cap", "ttl", "corrupt"))

    return [
        Column("appended", lambda: totals.records + totals.removed, counter=True),
        Column("reads", lambda: runtime.reads, counter=True),
        Column("read", lambda: runtime.records_read, counter=True),
        Column("delivered", lambda: dispatcher.delivered_total, counter=True),
        Column("claimed", lambda: queues.claimed_total, counter=True),
        Column("acked", lambda: queues.acks.total, counter=True),
        Column("requests", startup.requests_total, counter=True),
        Column("lost_cap", lambda: totals.lost.by_reason.get("cap", 0), counter=True),
        Column("lost_ttl", lambda: totals.lost.by_reason.get("ttl", 0), counter=True),
        Column("lost_corrupt", lambda: totals.lost.by_reason.get("corrupt", 0), counter=True),
        Column("lost_other", other_losses, counter=True),
        Column("wal_bytes", lambda: wal.bytes_written_total, counter=True),
        Column("syncs", lambda: wal.fsyncs_total, counter=True),
        Column("sync_us", lambda: wal.fsync_sum_us, counter=True),
        Column("sync_p99_us", _sync_p99(wal), peak=True),
        Column("records", lambda: totals.records),
        Column("bytes", lambda: totals.bytes),
        Column("to_free", lambda: 0 if storage is None else storage.store.rewriter.waiting_bytes),
        Column("topics", lambda: len(engine.topics)),
        Column("connections", lambda: 0 if startup.http is None else len(startup.http.connections)),
        Column("streams", lambda: quotas.streams),
        Column("resident_bytes", resident_bytes),
        Column("charged_bytes", lambda: budget.charged_bytes),
        Column("lag_ms", lambda: throttle.pressure.lag_ms, peak=True),
        Column("pressure", lambda: throttle.pressure.step, peak=True),
    ]


def _sync_p99(wal: WalStats) -> Callable[[], float]:
    """Return a function that returns the 99th percentile of the syncs since its last call: the bound of its bucket."""
    before = list(wal.fsync_buckets)

    def find() -> float:
        nonlocal before
        now = list(wal.fsync_buckets)
        grown = [count - earlier for count, earlier in zip(now, before, strict=True)]
        before = now
        rank = next((at for at, seen in enumerate(accumulate(grown)) if seen and seen >= 0.99 * sum(grown)), None)
        return 0 if rank is None else WalStats.BOUNDS_US[min(rank, len(WalStats.BOUNDS_US) - 1)]

    return find
