"""The tools: what each does, with the Python client, and their server. Every answer is a JSON object of bounded size.

The rights are those of the key or token of the client. A tool is a method whose signature and docstring are its schema
and its description.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import wraps
from itertools import count
from typing import Annotated, Any

import msgspec
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import Field

from topics import __version__
from topics.client import AsyncTopics
from topics.client.call import filter_of, tag_match
from topics.client.errors import TopicsError
from topics.client.items import Filter, ScheduleOptions
from topics.errors import Code
from topics.model.queue import JobState
from topics.server.loop.processes import Processes

MAX_RECORDS = 200  # of one answer
MAX_ANSWER_BYTES = 60_000  # a model reads about 15,000 tokens of it
MAX_VALUE_CHARS = 10_000  # of one record in an answer that is too long
MAX_WAIT_S = 50  # clients of agents give up after a minute
NODE = "agent"

Topic = Annotated[str, Field(description="name of the topic")]
Seq = Annotated[int, Field(ge=0, description="records behind this seq: 0 is the beginning, or next_from_seq of a read")]
Tag = Annotated[str, Field(description="only records with this tag; order-* for all that begin with order-")]
Where = Annotated[str, Field(description="only records with such data: customer.id = 7 and total > 100")]
Wait = Annotated[int, Field(ge=0, le=MAX_WAIT_S, description="how long to wait for one")]
Data = Annotated[Any, Field(description="any JSON value")]
Query = Annotated[str, Field(description="one SELECT; a topic is a table: topic, seq, ts, node, tag, meta, data")]
Lease = Annotated[int, Field(ge=1, le=3600, description="finish or return the jobs within this time")]
Seqs = Annotated[list[int], Field(description="seqs of the jobs, from claim_jobs")]
Worker = Annotated[str, Field(description="your name as a worker; use the same one in claim, finish and return")]
Limit = Annotated[int, Field(ge=1, le=MAX_RECORDS, description="most items of the answer")]


# The tools: those that only read, those that write, and those that destroy what cannot be brought back.
READS = "list_topics", "describe_topic", "read_records", "wait_for_records", "list_jobs", "query_sql"
WRITES = "append_record", "claim_jobs", "finish_jobs", "return_jobs", "redrive_jobs", "schedule_record"
DESTROYS = "delete_records", "delete_topic", "delete_schedule"


class Tools:
    """The tools. `client` returns the client of a call, and `sql` the address and the key for a query, if it may."""

    def __init__(
        self,
        client: Callable[[], AsyncTopics],
        *,
        sql: Callable[[], tuple[str, str | None]] | None = None,
        processes: Processes | None = None,
    ) -> None:
        self._client = client
        self._sql = sql
        self._processes = processes or Processes()

    @property
    def topics(self) -> AsyncTopics:
        return self._client()

    def names(self, *, destructive: bool) -> list[str]:
        """Return the tools that can be offered."""
        offered = (*READS, *WRITES, *(DESTROYS if destructive else ()))
        return [name for name in offered if name != "query_sql" or self._sql]

    # --- read

    async def list_topics(self, prefix: str = "", limit: Limit = 50, after: str = "") -> str:
        """List topics by name, with their size and type. `after` continues behind a name."""
        rows = self.topics.topics(prefix)
        return await _page(rows, limit, after, "topic", "list_topics")

    async def describe_topic(self, topic: Topic) -> str:
        """Describe a topic: its type, settings and schema, its first and last seq, and the counts of a queue."""
        return bounded(await self.topics.topic(topic))

    async def read_records(
        self, topic: Topic, from_seq: Seq = 0, last: int = 0, tag: Tag = "", where: Where = "", limit: Limit = 50
    ) -> str:
        """Read records in order, or those of the `last` so many seqs. A tombstone says which were lost, and why."""
        if last:
            from_seq = max(0, (await self.topics.topic(topic)).head_seq - last)
        return await self._read(topic, from_seq, filter_of(tag or None, where or None), limit, 0)

    async def wait_for_records(
        self, topic: Topic, from_seq: Seq, tag: Tag = "", where: Where = "", wait_s: Wait = 30
    ) -> str:
        """Wait until a topic has a record behind a seq, and read it. If there is none, ask again."""
        return await self._read(topic, from_seq, filter_of(tag or None, where or None), 50, wait_s * 1000)

    async def _read(self, topic: str, from_seq: int, wanted: Filter | None, limit: int, wait_ms: int) -> str:
        page = await self.topics.diff(
            topic, from_seq=from_seq, limit=limit, wait_ms=wait_ms, max_batch_bytes=MAX_ANSWER_BYTES, filter=wanted
        )  # fmt: skip
        answer = _plain(page)
        records = answer["records"]
        # Bound: each round takes one record away. The last one is cut.
        while len(records) > 1 and len(json.dumps(answer)) > MAX_ANSWER_BYTES:
            records.pop()
            answer["next_from_seq"], answer["caught_up"] = records[-1]["$seq"], False
        more = "wait_for_records" if answer["caught_up"] else "read_records"
        answer["to_continue"] = f"{more} with from_seq={answer['next_from_seq']}"
        return bounded(answer)

    async def query_sql(self, query: Query, limit: Limit = 50) -> str:
        """Query topics with SQL, such as: select data.sku, count(*) from orders group by 1."""
        assert self._sql is not None
        url, token = self._sql()
        found = await self._processes.query(url, token, query, limit=limit)
        rows = [dict(zip(found.columns, msgspec.json.decode(row), strict=True)) for row in found.rows]
        more = "narrow the query with where, or raise limit" if found.is_cut else None
        return bounded({"rows": rows, "to_continue": more})

    # --- write

    async def append_record(
        self, topic: Topic, data: Data, tag: str = "", idempotency_key: str = "", create: bool = False
    ) -> str:
        """Append a record: something to remember, an event, or a job of a queue. `create` makes a missing topic."""
        options: dict[str, Any] = {"tag": tag} if tag else {}
        key, may_create = idempotency_key or None, None if create else False
        return bounded(await self.topics.append(topic, data, key=key, create=may_create, node=NODE, **options))

    async def list_jobs(self, topic: Topic, state: JobState | None = None, limit: Limit = 50, after: int = 0) -> str:
        """List the jobs of a queue, with their state, deliveries and the reasons of failures. `after` is a seq."""
        jobs = (job async for job in self.topics.list_jobs(topic, state=state) if job.seq > after)
        return await _page(jobs, limit, "", "$seq", "list_jobs")

    async def claim_jobs(
        self, topic: Topic, worker: Worker, max_jobs: Limit = 1, lease_s: Lease = 300, wait_s: Wait = 0
    ) -> str:
        """Claim jobs of a queue. Finish or return each; otherwise it goes to another worker when its lease ends."""
        jobs = await self.topics.claim(topic, node=worker, max=max_jobs, lease_ms=lease_s * 1000, wait_ms=wait_s * 1000)
        rows = [
            {"seq": job.seq, "lease_id": job.lease_id, "tag": job.tag, "data": job.data, "deliveries": job.deliveries}
            | ({"reasons": msgspec.to_builtins(job.reasons)} if job.reasons else {})
            for job in jobs
        ]
        return bounded({"jobs": rows, "to_continue": "finish_jobs or return_jobs with these seqs"})

    async def finish_jobs(self, topic: Topic, seqs: Seqs, worker: Worker) -> str:
        """Finish claimed jobs: they are done and leave the queue."""
        return bounded(await self.topics.ack(topic, seqs, node=worker))

    async def return_jobs(self, topic: Topic, seqs: Seqs, worker: Worker, reason: str = "", delay_s: int = 0) -> str:
        """Return claimed jobs to their queue, to be delivered again. The job keeps the reason of its failure."""
        return bounded(await self.topics.nack(topic, seqs, node=worker, delay_ms=delay_s * 1000, reason=reason or None))

    async def redrive_jobs(self, topic: Topic, seqs: Seqs | None = None, dry_run: bool = False) -> str:
        """Move dead letters back to the queue `topic`: all, or those with these seqs in the dead-letter topic."""
        return bounded(await self.topics.redrive(topic, seqs=seqs, dry_run=dry_run))

    async def schedule_record(
        self, name: str, topic: Topic, data: Data, cron: str = "", every_s: int = 0, timezone: str = ""
    ) -> str:
        """Append a record at certain times: by `cron`, such as 30 2 * * *, or each `every_s`. A name is replaced."""
        timing: ScheduleOptions = {"cron": cron} if cron else {"every_ms": every_s * 1000}
        if timezone:
            timing["timezone"] = timezone
        return bounded(await self.topics.put_schedule(name, topic=topic, record={"data": data}, **timing))

    # --- destroy

    async def delete_records(self, topic: Topic, before_seq: int = 0, tag: str = "", dry_run: bool = True) -> str:
        """Delete the records before a seq, or with a tag such as order-7 or order-*. `dry_run` only counts them."""
        gone = await self.topics.delete(
            topic, before_seq=before_seq or None, match=tag_match(tag or None), dry_run=dry_run
        )
        return bounded(gone)

    async def delete_topic(self, topic: Topic) -> str:
        """Delete a topic with everything in it."""
        return bounded({"deleted": await self.topics.drop_topic(topic)})

    async def delete_schedule(self, name: str) -> str:
        """Delete a schedule. Records that it has appended stay."""
        return bounded({"deleted": await self.topics.drop_schedule(name)})


async def _page(rows: AsyncIterator[Any], limit: int, after: str, name: str, tool: str) -> str:
    """Return up to `limit` rows, and how to get the others."""
    found: list[Any] = []
    async for row in rows:
        shown = _plain(row)
        if after and shown[name] <= after:
            continue
        if len(found) == limit or len(json.dumps(found)) > MAX_ANSWER_BYTES - MAX_VALUE_CHARS:
            return bounded({"rows": found, "to_continue": f"{tool} with after={found[-1][name]}"})
        found.append(shown)
    return bounded({"rows": found, "to_continue": None})


def bounded(answer: Any) -> str:
    """Return an answer as JSON. What makes it too long is cut, and the answer says so."""
    value = _plain(answer)
    text = json.dumps(value, ensure_ascii=False)
    # Bound: the limit is halved in each round.
    for halving in count():
        if len(text.encode()) <= MAX_ANSWER_BYTES:
            break
        text = json.dumps(_cut(value, MAX_VALUE_CHARS >> halving), ensure_ascii=False)
    return text


def _plain(answer: Any) -> Any:
    """Return an answer as JSON has it, without the timings."""
    value = msgspec.json.decode(msgspec.json.encode(answer))
    if isinstance(value, dict):
        value.pop("performance", None)
    return value


def _cut(value: Any, chars: int) -> Any:
    """Return a value whose records, and other long members, are cut to so many characters."""
    if isinstance(value, list):
        kept = [_cut(one, chars) for one in value[: max(1, chars)]]
        return kept if len(kept) == len(value) else [*kept, f"cut: {len(value) - len(kept)} more"]
    if isinstance(value, dict):
        return {name: _cut(one, chars) for name, one in value.items()}
    if isinstance(value, str) and len(value) > chars:
        return f"{value[:chars]}… (cut: {len(value)} characters)"
    return value


# --- the server of the protocol, by the official SDK: the tools, topics as resources, and a prompt

INSTRUCTIONS = """\
topics is an event engine: topics hold JSON records in order, each with a seq. A topic of type queue hands out its
records as jobs. Every answer is short and has `to_continue` if there is more. A tombstone in an answer means that
records were lost. Names beyond the rights of the key are refused."""
INVESTIGATE = """\
The record with seq {seq} of the dead-letter topic {topic} is a job that failed too often. Find out why, and say what to
do.
1. Read it: read_records of {topic} with from_seq={before} and limit=1. Its meta has its queue, deliveries and reasons.
2. Describe the queue that it came from, and list its jobs: do others fail with the same reason?
3. Read its neighbours in {topic}: when did it begin, and what do they have in common?
4. Say in three sentences: the cause, whether a redrive can succeed now, and what must change before.
Do not redrive or delete anything unless the user asks for it."""


def build(tools: Tools, *, destructive: bool) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("topics", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    for name in tools.names(destructive=destructive):
        hints = ToolAnnotations(
            read_only_hint=name in READS, destructive_hint=name in DESTROYS, open_world_hint=False,
        )  # fmt: skip
        server.add_tool(_explained(getattr(tools, name)), name=name, annotations=hints, structured_output=False)

    @server.resource("topics://{topic}", name="topic", mime_type="application/json")
    async def topic_resource(topic: str) -> str:
        """A topic: its settings, with the schema of its records if it has one, and its state."""
        return bounded(await tools.topics.topic(topic))

    @server.resource("topics://", name="topics", mime_type="application/json")
    async def all_topics() -> str:
        """The topics, as list_topics returns them."""
        return await tools.list_topics()

    @server.prompt()
    def investigate_dead_letter(topic: str, seq: str) -> str:
        """Find out why a job ended in a dead-letter topic."""
        return INVESTIGATE.format(topic=topic, seq=seq, before=int(seq) - 1 if seq.isdecimal() else 0)

    return server


def _explained(tool: Any) -> Any:
    """Return the tool with errors that a model can act on: the code, the message and what the server says about it."""

    @wraps(tool)
    async def call(*args: Any, **fields: Any) -> str:
        try:
            answer: str = await tool(*args, **fields)
            return answer
        except TopicsError as error:
            detail = f" {bounded(error.detail)}" if error.detail else ""
            if error.code == Code.TOPIC_NOT_FOUND and tool.__name__ == "append_record":
                detail += "; create=true makes it"
            raise ToolError(f"{error.code}: {error}{detail}") from error
        except ValueError as error:
            raise ToolError(str(error)) from error

    return call
