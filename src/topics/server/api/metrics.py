"""Metrics of the server as rows. `exposition` has their formats."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from heapq import nlargest
from itertools import accumulate, chain, islice
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, TypeVar

from topics import __version__
from topics.engine.consumers.lag import Lag, lag_of, rough_age_ms
from topics.engine.routers.graph import Router
from topics.engine.state.name_index import NameIndex
from topics.engine.state.topic import Topic
from topics.engine.steps import Steps
from topics.engine.write import archived
from topics.logs import ERRORS
from topics.model.schedule import Schedule
from topics.model.wire import ArchiveStanding
from topics.server.access.operations import router_names
from topics.server.api.exposition import Metric, Sample, batches
from topics.server.api.named_topics import SUMMED, ColumnOf, choose, pages
from topics.server.api.services import Services, Startup
from topics.server.http.messages import TIMED
from topics.server.limits.os_limits import resident_bytes
from topics.server.loop.storage import Storage
from topics.storage.log.wal import WalStats
from topics.storage.replica.sequence import State

if TYPE_CHECKING:
    from topics.engine.durable.replication import Replication
    from topics.engine.durable.standby import Standby

Row = TypeVar("Row")

CONSUMERS_PER_STEP = 200

DAMAGED_TOPICS = 100
OTHERS = "(others)"  # no topic can have this name
REASONS = ("cap", "ttl", "restart", "corrupt", "failover")
CLASSES = ("ephemeral", "memory", "disk", "fsync", "replicated")


def collect(services: Services, prefixes: tuple[str, ...]) -> Steps[list[Metric]]:
    """Measure everything. Topics are named if `prefixes` cover them, or if there are no prefixes.

    Expires the leases of all queues, and the records of the named topics, first, as far as nothing has to be read from
    the disk. Creations and deletions that are still being written to the log are not waited for.

    Runs in steps, because there may be many topics. A step is a metric, or `ROWS_PER_STEP` topics.
    """
    yield from services.engine.replay_in_steps()
    leases = 0
    for some in batches(services.engine.state.queues.values()):
        for topic in some:
            if topic.queue is not None:
                services.engine.expire_in_memory(topic)
                leases += topic.queue.in_flight
        yield None
    parts = (
        _totals(services, leases),
        _process(services.startup, ready=not services.runtime.draining, progress=1.0),
        _wal(services.storage),
        (_requests(),),
        () if services.replication is None else _replica(services.replication),
        () if services.following is None else _standby(services.following),
        _topics(services, prefixes),
        _consumers(services, prefixes),
        _routers(services, prefixes),
        _schedules(services, prefixes),
    )
    rows = []
    for row in chain.from_iterable(parts):
        if row is not None:
            rows.append(row)
        yield None
    return rows


def _max_named(services: Services) -> int:
    """Return how many topics are named: none while the memory budget is full, so that the answer stays small."""
    return 0 if services.budget.full else services.runtime.settings.metrics_max_topics


def collect_while_recovering(startup: Startup) -> list[Metric]:
    """Return the metrics of the process. Topics are left out, because only some are recovered so far."""
    return [*_process(startup, ready=False, progress=startup.progress), *_wal(None)]


def _totals(services: Services, leases: int) -> Iterator[Metric]:
    state, pressure = services.engine.state, services.throttle.pressure
    by_class = {name: state.by_class.get(name, 0) for name in CLASSES}
    lost = {reason: state.totals.lost.by_reason.get(reason, 0) for reason in REASONS}
    holds = {cause.value: ns / 1e6 for cause, ns in services.runtime.holds.longest_ns.items()}
    yield from _rows(
        ("topics_topics", "Topics.", len(services.engine.topics)),
        ("topics_routers", "Routers.", len(services.engine.routers.table.by_name)),
        ("topics_schedules", "Schedules.", len(state.schedules.by_name)),
        ("topics_records_live", "Records that readers can still get.", state.totals.records),
        ("topics_bytes_live", "Bytes of those records.", state.totals.bytes),
        ("topics_queue_topics", "Topics of type queue.", len(state.queues)),
        ("topics_queue_leases_in_flight", "Jobs that a worker holds.", leases),
        ("topics_sse_connections", "Open event streams and WebSockets.", services.quotas.streams),
        ("topics_auth_failures_total", "Requests with an unknown or invalid key or token.", services.failures.total),
        ("topics_auth_refused_total", "Requests refused because their address has failed too often.",
         services.failures.refused_total),
        ("topics_watch_sessions", "Watch sessions.", len(services.sessions)),
        ("topics_slow_readers_total", "Streams closed because their client did not read.",
         services.runtime.slow_readers_total),
        ("topics_memory_budget_bytes", "Bytes that clients may make the server hold; 0 is no limit.",
         services.budget.limit_bytes),
        ("topics_loop_lag_ms", "How late the event loop runs: the lowest of the last four samples.", pressure.lag_ms),
        ("topics_pressure_step", "0 without pressure; 1 to 4 for the steps under pressure.", int(pressure.step)),
    )  # fmt: skip
    yield _labelled("topics_topics_by_class", "Topics by durability class.", "class", by_class)
    yield _labelled("topics_lost_records_total", "Seqs that were lost since the start, by reason.", "reason", lost)
    accounts = services.budget.accounts()
    yield _labelled(
        "topics_memory_charged_bytes", "Bytes charged to the memory budget by account.", "account", accounts
    )
    longest = "Longest time since the start for which the event loop was held, by cause."
    yield _labelled("topics_loop_hold_max_ms", longest, "cause", holds)


def _process(startup: Startup, *, ready: bool, progress: float) -> Iterator[Metric]:
    http, errors = startup.http, {"loop_error": 0, **ERRORS}
    usage, (descriptors, _) = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_NOFILE)
    yield from _rows(
        ("topics_ready", "1 while the server serves.", int(ready)),
        ("topics_recovery_progress", "How much of the log has been replayed, 0 to 1.", progress),
        ("topics_uptime_ms", "Milliseconds since the process started.", startup.uptime_ms()),
        ("process_cpu_seconds_total", "Processor time of the process.", usage.ru_utime + usage.ru_stime),
        ("process_max_fds", "File descriptors that the process may open.", descriptors),
    )
    yield _labelled("topics_build_info", "1, with the version of the server.", "version", {__version__: 1})
    yield _labelled(
        "topics_log_errors_total", "Lines of level error in the log of the server, by event.", "event", errors
    )
    if resident := resident_bytes():
        opened = len(os.listdir("/proc/self/fd")) - 1
        yield from _rows(
            ("process_resident_memory_bytes", "Memory of the process.", resident),
            ("process_open_fds", "Open file descriptors of the process.", opened),
        )
    if http is not None:
        yield from _rows(
            ("topics_http_connections", "Open connections.", len(http.connections)),
            (
                "topics_http_connections_max",
                "Connections that may be open; 0 is no limit.",
                http.limits.max_connections,
            ),
            ("topics_http_connections_shed_total", "Idle connections closed to make room.", http.shed_total),
            ("topics_http_connections_refused_total", "Connections refused at the limit.", http.refused_total),
            ("topics_http_requests_total", "Requests answered.", http.requests_total),
        )


BOUND_BITS = range(16, 35)  # buckets of 2**16 ns (66 µs) to 2**34 ns (17 s)


def _requests() -> Metric:
    """Return how long requests took, by route and status: only those that there were."""
    samples: list[Sample] = []
    for (method, path), by_status in TIMED.items():
        for status, counts in list(by_status.items()):
            labels, values = "method route status", f"{method} {path} {status}"
            running = list(accumulate(counts[1:]))
            for bits in BOUND_BITS:
                samples.append(("_bucket", f"{labels} le", f"{values} {2**bits / 1e9:.9g}", running[bits - 1]))
            samples.append(("_bucket", f"{labels} le", f"{values} +Inf", running[-1]))
            samples += [("_sum", labels, values, counts[0] / 1e9), ("_count", labels, values, running[-1])]
    about = "Time from the head of a request to its answer, without the time that the client asked the server to wait."
    return Metric("topics_http_request_duration_seconds", about, samples, "histogram")


def _wal(storage: Storage | None) -> Iterator[Metric]:
    wal = WalStats() if storage is None else storage.wal.stats
    read_only, failing = storage and storage.wal.read_only, storage and storage.store.retries.reason
    yield from _rows(
        ("topics_wal_frames_total", "Entries written to the log.", wal.frames_total),
        ("topics_wal_batches_total", "Writes to the log; one carries every entry of a turn.", wal.batches_total),
        ("topics_wal_fsyncs_total", "Syncs of the log.", wal.fsyncs_total),
        ("topics_wal_bytes_written_total", "Bytes written to the log.", wal.bytes_written_total),
        ("topics_wal_rotations_total", "Log files begun after the first.", wal.rotations_total),
        ("topics_wal_submit_full_total", "Entries that the log refused.", wal.submit_full_total),
        ("topics_wal_queue_depth", "Entries written and not synced yet.", wal.queue_depth),
        ("topics_wal_queue_depth_peak", "Most entries that ever waited for a sync.", wal.queue_depth_peak),
        ("topics_wal_read_only", "1 while the log cannot be written.", int(read_only is not None)),
        ("topics_checkpoint_failing", "1 while checkpoints fail and the log grows.", int(failing is not None)),
    )
    bounds, running = map(str, [*wal.BOUNDS_US, "+Inf"]), list(accumulate(wal.fsync_buckets))
    buckets: list[Sample] = [("_bucket", "le", bound, n) for bound, n in zip(bounds, running, strict=True)]
    yield Metric(
        "topics_wal_fsync_latency_us", "Microseconds a sync of the log took.",
        [*buckets, ("_sum", "", "", wal.fsync_sum_us), ("_count", "", "", running[-1])], "histogram",
    )  # fmt: skip
    if storage is not None:
        store = storage.store
        yield from _rows(
            ("topics_checkpoint_failures_total", "Checkpoints that failed.", store.retries.failures_total),
            ("topics_checkpoint_age_seconds", "Time since the last checkpoint, or the start.",
             storage.checkpoint_age_ms / 1000),
        )  # fmt: skip
        scrub, damage = storage.scrub, storage.scrub.damage()
        yield from _rows(
            ("topics_scrub_bytes_total", "Bytes that the scrub has compared with their checksums.", scrub.bytes_total),
            ("topics_scrub_rounds_total", "Rounds of the scrub over the whole directory.", scrub.rounds_total),
            ("topics_scrub_round_age_seconds", "Time since the last round ended, or the start.",
             (storage.now_ms - scrub.round_ended_ms) / 1000),
            ("topics_damaged_places", "Damaged places in files that the scrub has found.", len(damage)),
        )  # fmt: skip
        if storage.backup_ms is not None:
            age_s = (storage.now_ms - storage.backup_ms) / 1000
            yield from _rows(("topics_backup_age_seconds", "Time since the last good backup.", age_s))
        rewriter = store.rewriter
        yield from _rows(
            ("topics_rewrite_waiting_bytes", "Bytes of removed records that rewrites of segments will free.",
             rewriter.waiting_bytes),
            ("topics_rewrite_freed_bytes_total", "Bytes that rewrites have freed.", rewriter.freed_bytes_total),
            ("topics_rewrite_segments_total", "Segments that were rewritten.", rewriter.segments_total),
        )  # fmt: skip
        records: dict[str, float] = {}
        for one in damage:
            if one.topic and one.seqs is not None:
                records[one.topic] = records.get(one.topic, 0) + one.seqs[1] - one.seqs[0] + 1
        worst = dict(nlargest(DAMAGED_TOPICS, records.items(), key=itemgetter(1)))
        about = "Records that a reader will lose to damage that the scrub has found, up to 100 topics."
        yield _labelled("topics_damaged_records", about, "topic", worst)
        with suppress(OSError):
            free_bytes = store.fs.free_bytes(store.dir.root)
            yield from _rows(("topics_disk_free_bytes", "Space that is left for the data directory.", free_bytes))


def _replica(replication: Replication) -> Iterator[Metric]:
    sequence, uploader = replication.sequence, replication.uploader
    cut_off = "1 while all writes are refused, because a standby may have taken over."
    yield from _rows(
        ("topics_replica_lag_bytes", "Bytes of the log that are synced and not uploaded.", sequence.lag_bytes),
        ("topics_replica_lag_ms", "Milliseconds for which the oldest of them has waited.", replication.lag_ms),
        ("topics_replica_away", "1 while the bucket does not confirm an upload in time.", int(replication.is_away)),
        ("topics_replica_fenced", "1 if another server has taken over.", int(sequence.state == "fenced")),
        ("topics_replica_following", "1 while the replica has a checkpoint and the log after it.",
         int(sequence.state is State.FOLLOWING)),
        ("topics_replica_term", "Term of this server in the sequence of the replica.", sequence.term),
        ("topics_replica_object", "Number of the last object.", sequence.last_number),
        ("topics_replica_objects_total", "Objects of the log that were uploaded.", uploader.objects_total),
        ("topics_replica_bytes_total", "Bytes of these objects.", uploader.bytes_total),
        ("topics_replica_failures_total", "Requests to the bucket that failed.", uploader.failures_total),
        ("topics_replica_followers", "Servers that follow this one.", len(replication.followers)),
        ("topics_replica_cut_off", cut_off, int(replication.is_cut_off)),
    )  # fmt: skip
    lags = {one.name: one.lag_ms for one in replication.followers}
    behind = "Milliseconds that a follower was behind when it said so last."
    yield _labelled("topics_replica_follower_lag_ms", behind, "follower", lags)


def _standby(standby: Standby) -> Iterator[Metric]:
    following = standby.following
    yield from _rows(
        ("topics_replica_standby", "1 for a server that follows another one.", 1),
        ("topics_replica_lag_ms", "Milliseconds since all objects were applied.", standby.lag_ms),
        ("topics_replica_away", "1 while the bucket does not answer.", int(bool(following.last_failure))),
        ("topics_replica_term", "Term of the objects that are applied.", following.term),
        ("topics_replica_object", "Number of the last object.", following.number),
        ("topics_replica_failures_total", "Requests to the bucket that failed.", standby.failures_total),
    )


def _columns(
    label: str, rows: list[Row], columns: list[ColumnOf[Row]], name: Callable[[Row], str] = attrgetter("name")
) -> Iterator[Metric | None]:
    """Yield a metric per column, with a sample per row. A value of None is left out: its row may have changed since."""
    for metric, help, value in columns:
        samples: list[Sample] = []
        for some in batches(rows):
            samples += [("", label, name(row), found) for row in some if (found := value(row)) is not None]
            yield None
        yield Metric(metric, help, samples)


def _topics(services: Services, prefixes: tuple[str, ...]) -> Iterator[Metric | None]:
    engine, now_ms = services.engine, services.runtime.clock.now_ms()
    chosen, left_out, others = yield from choose(services, prefixes, _max_named(services))
    for some in batches(chosen):
        for topic in some:
            if not topic.gone:
                engine.expire_in_memory(topic)
        yield None
    standings: dict[Topic, ArchiveStanding | None] = {}
    for some in batches([topic for topic in chosen if topic.archived or topic.config.archive is not None]):
        standings |= {topic: archived.standing(topic, now_ms, exact=False) for topic in some if not topic.gone}
        yield None

    def archive(name: str) -> Callable[[Topic], float | None]:
        return lambda topic: getattr(standings.get(topic), name, None)

    columns: list[ColumnOf[Topic]] = [
        ("topics_topic_head_seq", "Highest assigned seq per topic.", lambda topic: topic.head),
        ("topics_topic_earliest_seq", "Seq of the first live record per topic.", lambda topic: topic.earliest),
        *SUMMED,
        ("topics_topic_queue_blocked", "Of the ready jobs per queue, those that wait for another job of their key.",
         lambda topic: None if topic.queue is None else len(topic.queue.keys.blocked)),
        ("topics_topic_queue_paused", "1 for a queue that is paused.",
         lambda topic: None if topic.queue is None else int(topic.config.paused)),
        ("topics_topic_queue_oldest_seconds", "Age of the oldest job per queue that is not done.",
         lambda topic: None if topic.queue is None else rough_age_ms(topic, now_ms) / 1000),
        ("topics_topic_archive_unarchived", "Live records that the archive does not have yet.", archive("unarchived")),
        ("topics_topic_archive_overdue", "Records past their TTL that are there only because the topic holds them.",
         archive("overdue")),
        ("topics_topic_archive_evicted_total",
         "Records that a cap evicted before they were archived, though the topic holds.", archive("evicted")),
        ("topics_topic_archived_seq", "Seq up to which an archive was reported to have everything.",
         lambda topic: topic.archived if topic in standings else None),
    ]  # fmt: skip
    for metric in _columns("topic", chosen, columns):
        if metric is not None and left_out and metric.name in others:
            metric.samples.append(("", "topic", OTHERS, others[metric.name]))
        yield metric
    lost: list[Sample] = []
    for some in batches(chosen):
        for topic in some:
            by_reason = topic.losses.by_reason()
            lost += [("", "topic reason", f"{topic.name} {reason}", seqs) for reason, seqs in by_reason.items()]
        yield None
    yield Metric("topics_topic_lost_records", "Seqs that were lost per topic and reason.", lost)
    targets = set[str | None]()
    for some in batches(engine.state.queues.values()):
        targets.update(topic.config.dead_letter for topic in some)
        yield None
    letters = {topic.name: 1 for topic in chosen if topic.name in targets}
    yield _labelled(
        "topics_topic_dead_letters", "1 for a topic that a queue moves its failed jobs to.", "topic", letters
    )
    truncated = "1 if there are more topics than are named here; topics_topic_left_out counts them."
    yield from _rows(
        ("topics_topic_left_out", f'Topics that are not named here; the series "{OTHERS}" sums them.', left_out),
        ("topics_topic_metrics_truncated", truncated, int(left_out > 0)),
    )


def _consumers(services: Services, prefixes: tuple[str, ...]) -> Iterator[Metric | None]:
    """Return the lag of the consumers of topics that the prefixes cover.

    There are at most as many series as named topics, in the order of topics and names: the same ones every time.
    """
    limit, now_ms = _max_named(services), services.runtime.clock.now_ms()
    found = list(islice(services.engine.consumers.everywhere(prefixes=prefixes), limit + 1))
    lags: list[tuple[str, Lag]] = []
    for at, (topic, consumer) in enumerate(found[:limit]):
        if not at % CONSUMERS_PER_STEP:
            yield None
        if not topic.gone:
            lags.append((f"{topic.name} {consumer.name}", lag_of(topic, consumer, now_ms, exact=False)))
    columns: list[ColumnOf[tuple[str, Lag]]] = [
        ("topics_consumer_lag_records", "Live records that a consumer has not read yet.", lambda row: row[1].records),
        ("topics_consumer_lag_seconds", "Age of the oldest record that a consumer has not read yet.",
         lambda row: row[1].age_ms / 1000),
    ]  # fmt: skip
    yield from _columns("topic consumer", lags, columns, lambda row: row[0])
    more = "1 if there are more consumers than are named here."
    yield from _rows(("topics_consumer_metrics_truncated", more, int(len(found) > limit)))


def _routers(services: Services, prefixes: tuple[str, ...]) -> Iterator[Metric | None]:
    table = services.engine.routers.table
    columns: list[ColumnOf[Router]] = [
        ("topics_router_forwarded_total", "Copies made per router.", lambda router: router.forwarded_total),
        ("topics_router_cursor", "Seq of the source up to which a router has come.", lambda router: router.cursor),
        ("topics_router_lag", "Records of the source that a router has not processed yet.", lambda router: router.lag),
        ("topics_router_held", "1 while it has a last_error.", lambda router: int(bool(router.edge.last_error))),
    ]  # fmt: skip
    return _named(services, "router", prefixes, table.names, table.by_name, router_names, columns)


def _schedules(services: Services, prefixes: tuple[str, ...]) -> Iterator[Metric | None]:
    schedules, state = services.engine.schedules, services.engine.state
    columns: list[ColumnOf[Schedule]] = [
        ("topics_schedule_last_seconds", "Unix time of the last tick that appended.", lambda one: one.last_ms / 1000),
        ("topics_schedule_next_seconds", "Unix time of the next tick; 0 if there is none.",
         lambda one: (schedules.next_at(one) or 0) / 1000),
        ("topics_schedule_failures_total", "Ticks that failed.", lambda one: schedules.standing(one.name).failures),
    ]  # fmt: skip
    names = state.schedules.names
    return _named(
        services, "schedule", prefixes, names, state.schedules.by_name, lambda one: (one.config.topic,), columns
    )


def _named(
    services: Services, label: str, prefixes: tuple[str, ...], names: NameIndex, rows: Mapping[str, Row],
    names_of: Callable[[Row], tuple[str, ...]], columns: list[ColumnOf[Row]],
) -> Iterator[Metric | None]:  # fmt: skip
    """Yield a metric per column, for the rows whose names, and those of their topics, the prefixes cover."""
    seen, most = list[Row](), _max_named(services)
    for some in pages(names, prefixes, len(rows)):
        if len(seen) >= most:
            break
        found = map(rows.__getitem__, some)
        seen += [one for one in found if not prefixes or all(name.startswith(prefixes) for name in names_of(one))]
        yield None
    yield from _columns(label, seen[:most], columns)


def _rows(*rows: tuple[str, str, float]) -> Iterator[Metric]:
    """Yield a metric of one number for each name, help and value."""
    return (Metric(name, help, [("", "", "", value)]) for name, help, value in rows)


def _labelled(name: str, help: str, label: str, values: Mapping[str, float]) -> Metric:
    return Metric(name, help, [("", label, text, value) for text, value in values.items()])
