# Generated from _async/client.py by tools/unasync.py. Do not edit.
"""`Topics`: everything a server offers, as methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack
from uuid import uuid4

import httpx
import msgspec
from msgspec import Struct

from topics.client import tracing
from topics.client._sync import following
from topics.client._sync.job import ClaimedJob, Job
from topics.client._sync.socket import Socket
from topics.client._sync.transport import Transport, fields_of, router_path, topic_path, with_query
from topics.client._sync.worker import Handler, Worker
from topics.client._sync.writer import Writer
from topics.client.cursors import Cursor
from topics.client.errors import TopicsError, Unavailable, Unreachable
from topics.client.items import Appended, Config, Gap, Match, NewRecord, Page, Position, Record
from topics.client.watching import Start, WatchCursor
from topics.model import queue, wire
from topics.model import router as routing

Row = TypeVar("Row")
PAGE_ROWS = 1000
PAGE_RECORDS = 1000  # the most that a server returns unless it is configured otherwise
CLAIM_WAIT_MS = 20_000


class _Claimed(Struct):
    claimed: list[ClaimedJob]


class Topics:
    """A server. Every failure is a `TopicsError`, with a class per error code.

    with Topics("http://127.0.0.1:4000") as topics:
        topics.append("orders", {"sku": "V60"}, tag="order-7")
        for item in topics.follow("orders"):
            print(item)
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:4000",
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = Transport(url, token=token, timeout_s=timeout_s, retries=retries, transport=transport)
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    # --- topics

    def put_topic(self, topic: str, **config: Unpack[Config]) -> wire.TopicPut:
        """Create a topic, or change its configuration.

        topics.put_topic("orders", durability="fsync", cap_records=1_000_000)
        """
        return self._http.call("PUT", topic_path(topic), wire.TopicPut, body=config)

    def topic(self, topic: str) -> wire.TopicState:
        """Return the state of a topic: head, count, bytes, configuration. Raises `TopicNotFound`."""
        return self._http.call("GET", with_query(topic_path(topic), touch=False), wire.TopicState)

    def topics(self, prefix: str = "") -> Iterator[wire.TopicSummary]:
        """Yield the topics whose names begin with `prefix`, by name.

        for row in topics.topics("orders."):
            print(row.topic, row.count)
        """
        for page in self._pages("/v0/topics", wire.TopicList, prefix=prefix or None):
            for row in page.topics:
                yield row

    def drop_topic(self, topic: str, *, if_empty: bool = False) -> bool:
        """Remove a topic and everything in it. Return False if it did not exist."""
        path = with_query(topic_path(topic), if_empty=True if if_empty else None)
        return (self._http.call("DELETE", path, wire.TopicDropped)).deleted

    # --- records

    def append(
        self,
        topic: str,
        data: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        priority: int | None = None,
        delay_ms: int | None = None,
        deliver_at: int | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
    ) -> Appended:
        """Append one record. `key` is its idempotency key; without one the client makes one up for its retries.

        done = topics.append("orders", {"sku": "V60"}, tag="order-7")
        print(done.seq)
        """
        record = NewRecord(
            data=data, tag=tag, node=node, meta=None if meta is None else dict(meta),
            priority=priority, delay_ms=delay_ms, deliver_at=deliver_at,
        )  # fmt: skip
        return self.append_many(topic, [record], key=key, create=create, config=config)

    def append_many(
        self,
        topic: str,
        records: Sequence[NewRecord | Mapping[str, Any]],
        *,
        node: str | None = None,
        key: str | None = None,
        create: bool | None = None,
        config: Config | None = None,
    ) -> Appended:
        """Append records: all of them or none.

        topics.append_many("orders", [NewRecord(data=1), {"data": 2, "tag": "b"}])
        """
        with tracing.sending(topic, records) as traced:
            body = {
                "records": traced,
                "idempotency_key": key or uuid4().hex,
                **fields_of(node=node, create=create, config=config),
            }
            return self._http.call("POST", with_query(topic_path(topic), return_seqs=False), Appended, body=body)

    def diff(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        epoch: int | None = None,
        limit: int = PAGE_RECORDS,
        max_batch_bytes: int | None = None,
        wait_ms: int = 0,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        include_tags: bool = True,
        include_meta: bool = True,
        include_data: bool = True,
        from_ts: int | None = None,
        retries: int | None = None,
    ) -> Page:
        """Return one page of records after `from_seq`. With `wait_ms`, wait for a record at the head of the topic.

        page = topics.diff("orders", from_seq=0)
        if page.gap: print("lost", page.gap.first_seq, page.gap.last_seq, page.gap.reason)
        """
        body = {
            "from_seq": from_seq, "limit": limit, "include_tags": include_tags,
            **fields_of(
                epoch=epoch, wait_ms=wait_ms or None, node=node, filter=filter, from_ts=from_ts,
                max_batch_bytes=max_batch_bytes,
                include_meta=None if include_meta else False, include_data=None if include_data else False,
            ),
        }  # fmt: skip
        return self._http.call("POST", topic_path(topic, "/diff"), Page, body=body, wait_ms=wait_ms, retries=retries)

    def read(
        self,
        topic: str,
        *,
        from_seq: int = 0,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        include_data: bool = True,
    ) -> Iterator[Record | Gap]:
        """Yield records and gaps from `from_seq` up to the head of the topic, and end there.

        for item in topics.read("orders"):
            print(item)
        """
        epoch = None
        while True:
            page = self.diff(topic, from_seq=from_seq, epoch=epoch, node=node, filter=filter, include_data=include_data)
            for item in following.items_of(page, topic):
                yield item
            if page.caught_up:
                return
            from_seq, epoch = page.next_from_seq, page.epoch

    def delete(
        self,
        topic: str,
        *,
        before_seq: int | None = None,
        match: Match | None = None,
        seqs: Sequence[int] | None = None,
        epoch: int | None = None,
        dry_run: bool = False,
    ) -> wire.RecordsDeleted:
        """Delete records by seq, by tag, or both. Readers see no gap where records were deleted.

        topics.delete("orders", match=("tag", "Glob", "customer-7:*"))
        """
        body = fields_of(before_seq=before_seq, match=match, seqs=seqs, epoch=epoch, dry_run=dry_run or None)
        return self._http.call("POST", topic_path(topic, "/delete"), wire.RecordsDeleted, body=body)

    # --- following

    def follow(
        self,
        topic: str,
        *,
        cursor: Cursor | None = None,
        from_seq: int = 0,
        tail: bool = False,
        node: str | Sequence[str] | None = None,
        filter: Match | None = None,
        include_data: bool = True,
        page_records: int = PAGE_RECORDS,
        wait_ms: int = 20_000,
        wait_for_topic: bool = False,
        on_retry: Callable[[TopicsError, float], None] | None = None,
    ) -> Iterator[Record | Gap]:
        """Yield the records of a topic as they come, and a `Gap` wherever records were lost. Never ends by itself.

        The loop resumes after broken connections and restarts of the server, and waits as long as the server asks. Its
        position goes to `cursor` when a page has been processed: after a crash the last page comes again, and no record
        is skipped. A topic that was created again comes as a gap with the reason `recreated`. A topic that does not
        exist raises `TopicNotFound`, unless it existed before or `wait_for_topic` is set.

            for item in topics.follow("orders", cursor=FileCursor("orders.cursor")):
                if isinstance(item, Gap): print("lost", item.first_seq, item.last_seq, item.reason)
                else: print(item.seq, item.data)
        """
        start = following.Following(
            topic=topic, cursor=cursor, from_seq=from_seq, tail=tail, node=node, filter=filter,
            include_data=include_data, page_records=page_records, wait_ms=wait_ms,
            wait_for_topic=wait_for_topic, on_retry=on_retry,
        )  # fmt: skip
        return following.follow(self, start)

    def watch(
        self,
        topics: Iterable[str] | Mapping[str, Start | Position | None],
        *,
        cursor: WatchCursor | None = None,
        node: str | Sequence[str] | None = None,
        include_data: bool = True,
        strong: bool = False,
        heartbeat_ms: int = 15_000,
        wait_for_topics: bool = False,
        on_retry: Callable[[TopicsError, float], None] | None = None,
    ) -> Iterator[Record | Gap]:
        """Follow many topics over one stream. A name that ends in `*` stands for every topic that begins so.

        for item in topics.watch({"orders": None, "chat-*": Start(tail=True)}):
            print(item.topic, item)
        """
        start = following.Watching(
            topics=dict(topics) if isinstance(topics, Mapping) else dict.fromkeys(topics),
            cursor=cursor, node=node, include_data=include_data, strong=strong, heartbeat_ms=heartbeat_ms,
            wait_for_topics=wait_for_topics, on_retry=on_retry,
        )  # fmt: skip
        return following.watch(self._http, start)

    def connect(self) -> Socket:
        """Open a WebSocket, to publish and subscribe over one connection.

        with topics.connect() as socket:
            socket.subscribe("room", tail=True)
            socket.publish("room", {"text": "hello"})
            for item in socket: print(item)
        """
        return Socket(self._http.url, self._http.token)

    # --- writing

    def writer(
        self,
        topic: str,
        *,
        max_records: int = 1000,
        max_bytes: int = 1 << 20,
        linger_ms: int = 5,
        max_pending_bytes: int = 64 << 20,
        node: str | None = None,
    ) -> Writer:
        """Return a writer that batches records, retries without doubling them, and bounds its memory.

        with topics.writer("clicks") as writer:
            for click in clicks:
                writer.append(click)      # waits while too much is pending
        """
        return Writer(
            self._http, topic, max_records=max_records, max_bytes=max_bytes, linger_ms=linger_ms,
            max_pending_bytes=max_pending_bytes, node=node,
        )  # fmt: skip

    # --- queues

    def claim(self, topic: str, *, node: str, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0) -> list[Job]:
        """Lease up to `max` jobs to the worker `node`. With `wait_ms`, wait for a job."""
        body = {"node": node, "max": max, "wait_ms": wait_ms, **fields_of(lease_ms=lease_ms)}
        answer = self._http.call("POST", topic_path(topic, "/claim"), _Claimed, body=body, safe=False, wait_ms=wait_ms)
        return [Job(self, topic, node, job) for job in answer.claimed]

    def ack(
        self, topic: str, seqs: Sequence[int], *, node: str, lease_ids: Sequence[str] | None = None
    ) -> queue.AckAnswer:
        """Complete jobs. Seqs that `node` does not hold are listed in `skipped`."""
        body = {"node": node, "seqs": seqs, **fields_of(lease_ids=lease_ids)}
        return self._http.call("POST", topic_path(topic, "/ack"), queue.AckAnswer, body=body)

    def nack(
        self,
        topic: str,
        seqs: Sequence[int],
        *,
        node: str,
        delay_ms: int = 0,
        lease_ids: Sequence[str] | None = None,
    ) -> queue.NackAnswer:
        """Give jobs back, to be delivered again after `delay_ms`."""
        body = {"node": node, "seqs": seqs, "delay_ms": delay_ms, **fields_of(lease_ids=lease_ids)}
        return self._http.call("POST", topic_path(topic, "/nack"), queue.NackAnswer, body=body)

    def extend(
        self, topic: str, seqs: Sequence[int], *, node: str, lease_ms: int, lease_ids: Sequence[str] | None = None
    ) -> queue.ExtendAnswer:
        """Hold jobs for `lease_ms` from now."""
        body = {"node": node, "seqs": seqs, "lease_ms": lease_ms, **fields_of(lease_ids=lease_ids)}
        return self._http.call("POST", topic_path(topic, "/extend"), queue.ExtendAnswer, body=body)

    def list_jobs(self, topic: str, *, state: queue.JobState | None = None) -> Iterator[queue.ListedJob]:
        """Yield the jobs of a queue with their state, in the order of the log."""
        for page in self._pages(topic_path(topic, "/jobs"), queue.JobList, state=state):
            for job in page.jobs:
                yield job

    def redrive(
        self,
        topic: str,
        *,
        match: Match | None = None,
        seqs: Sequence[int] | None = None,
        from_seq: int = 0,
        limit: int = 1000,
        dry_run: bool = False,
        dead_letter: str | None = None,
    ) -> queue.RedriveAnswer:
        """Move dead letters of a queue back into it. With `dry_run`, count them only."""
        body = {
            "from_seq": from_seq, "limit": limit, "dry_run": dry_run,
            **fields_of(match=match, seqs=seqs, dead_letter=dead_letter),
        }  # fmt: skip
        return self._http.call("POST", topic_path(topic, "/redrive"), queue.RedriveAnswer, body=body, safe=dry_run)

    def jobs(self, topic: str, *, node: str | None = None, lease_ms: int | None = None) -> Iterator[Job]:
        """Yield jobs one by one. The body of the loop acks each job, or gives it back. Never ends by itself.

        for job in topics.jobs("emails"):
            send(job.data)
            job.ack()
        """
        name = node or f"py-{uuid4().hex[:12]}"
        while True:
            for job in self.claim(topic, node=name, lease_ms=lease_ms, wait_ms=CLAIM_WAIT_MS):
                yield job

    def worker(
        self,
        topic: str,
        *,
        concurrency: int = 1,
        node: str | None = None,
        lease_ms: int = 30_000,
        timeout_s: float | None = None,
        retry_delay_ms: Callable[[int], int] | None = None,
        on_start: Callable[[Job], object] | None = None,
        on_done: Callable[[Job, float], object] | None = None,
        on_error: Callable[[Job, BaseException], object] | None = None,
    ) -> Callable[[Handler], Worker]:
        """Make a function the worker of a queue. `run` works until a signal stops it.

            @topics.worker("emails", concurrency=8)
            def send(job):
                smtp.send(job.data["to"])

            topics.run()

        The lease is extended while the function runs. A job is acked when the function returns, and given back with a
        growing delay when it raises or takes longer than `timeout_s`. SIGTERM and SIGINT let running jobs finish.
        """

        def register(handler: Handler) -> Worker:
            made = Worker(
                self, topic, handler, concurrency=concurrency, node=node, lease_ms=lease_ms, timeout_s=timeout_s,
                retry_delay_ms=retry_delay_ms, on_start=on_start, on_done=on_done, on_error=on_error,
            )  # fmt: skip
            self._workers.append(made)
            return made

        return register

    def run(self) -> None:
        """Run all workers of this client until SIGTERM, SIGINT or `stop`."""
        Worker.run_all(self._workers)

    def stop(self) -> None:
        """Let the workers of this client finish the jobs that they hold, and end."""
        for worker in self._workers:
            worker.stop()

    # --- routers

    def put_router(
        self,
        name: str,
        *,
        source: str,
        dest: str,
        filter: Match | None = None,
        preserve_node: bool = True,
        preserve_tag: bool = True,
        create_dest: bool = True,
        allow_cycle: bool = False,
        guarantee: routing.Guarantee = "at_least_once",
        from_seq: int | None = None,
    ) -> routing.RouterPutAnswer:
        """Create a router, or change it: every record of `source` is copied to `dest`.

        topics.put_router("orders->audit", source="orders", dest="audit")
        """
        body = {
            "source": source, "dest": dest, "preserve_node": preserve_node, "preserve_tag": preserve_tag,
            "create_dest": create_dest, "allow_cycle": allow_cycle, "guarantee": guarantee,
            **fields_of(filter=filter, from_seq=from_seq),
        }  # fmt: skip
        return self._http.call("PUT", router_path(name), routing.RouterPutAnswer, body=body)

    def router(self, name: str) -> routing.RouterAnswer:
        """Return a router, how far it has come, and what holds it up. Raises `RouterNotFound`."""
        return self._http.call("GET", router_path(name), routing.RouterAnswer)

    def routers(
        self, *, prefix: str | None = None, source: str | None = None, dest: str | None = None
    ) -> Iterator[routing.RouterSummary]:
        """Yield routers by name."""
        for page in self._pages("/v0/routers", routing.RouterList, prefix=prefix, source=source, dest=dest):
            for row in page.routers:
                yield row

    def drop_router(self, name: str) -> bool:
        """Remove a router. Records that it has copied stay. Return False if it did not exist."""
        return (self._http.call("DELETE", router_path(name), routing.RouterDropped)).deleted

    def preview_router(
        self, name: str, *, source: str | None = None, filter: Match | None = None, from_seq: int = 0
    ) -> routing.PreviewAnswer:
        """Count the records that a filter would copy."""
        body = {"from_seq": from_seq, **fields_of(source=source, filter=filter)}
        return self._http.call("POST", router_path(name, "/preview"), routing.PreviewAnswer, body=body)

    # --- the server

    def health(self) -> wire.Health:
        """Return the version and the uptime of the server."""
        return self._http.call("GET", "/v0/health", wire.Health)

    def is_ready(self) -> bool:
        """Return whether the server answers and can serve."""
        try:
            self._http.send("GET", "/v0/ready")
        except (Unavailable, Unreachable):
            return False
        return True

    def metrics(self, format: Literal["json", "prometheus"] = "json") -> Any:
        """Return gauges and counters: as a dictionary, or as Prometheus text."""
        if format == "prometheus":
            return (self._http.send("GET", "/v0/metrics", accept="text/plain")).decode()
        return msgspec.json.decode(self._http.send("GET", "/v0/metrics"))

    def _pages(self, path: str, kind: type[Row], **query: object) -> Iterator[Row]:
        cursor = None
        while True:
            page = self._http.call("GET", with_query(path, page_size=PAGE_ROWS, cursor=cursor, **query), kind)
            yield page
            cursor = getattr(page, "next_cursor", None)
            if cursor is None:
                return
