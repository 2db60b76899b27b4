"""Handlers that run a command of topics beside the server: SQL, and the figures and the switch of a replica."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Raw

from topics.errors import Code, TopicsError, invalid
from topics.installation import install_command, is_installed
from topics.model.inspection import (
    MAX_SQL_ROWS,
    FollowerInfo,
    Promoted,
    PromoteRequest,
    ReplicaAnswer,
    SqlAnswer,
    SqlRequest,
)
from topics.server.api.route import Call
from topics.server.api.services import Services
from topics.server.http.answers import failure
from topics.server.http.messages import Answer, Deferred, Response
from topics.server.loop.answer import json_answer, performance
from topics.server.loop.processes import failed

PROMOTE_S = 70.0  # `topics replica promote` waits for 60 s
_tasks: set[asyncio.Task[Response]] = set()


def _later(call: Call, make: Callable[[], Awaitable[Any]], *, ends_with_client: bool = False) -> Answer:
    """Return what `make` answers."""
    deferred = Deferred()

    async def run() -> Response:
        try:
            return json_answer(200, await make())
        except OSError as error:  # no descriptor, no memory, or no room for the file with the key
            what = f"the command cannot start now: {error.strerror or error}"
            raise TopicsError(Code.STORAGE_UNAVAILABLE, what, retry_after_ms=1000) from error

    def answer(task: asyncio.Task[Response]) -> None:
        _tasks.discard(task)
        error = failed("the client has closed the connection") if task.cancelled() else task.exception()
        deferred.resolve(task.result() if error is None else failure(call.request, error))

    task = asyncio.get_running_loop().create_task(run())
    _tasks.add(task)
    task.add_done_callback(answer)
    if ends_with_client:
        deferred.on_cancel = deferred.on_hurry = task.cancel
    return deferred


def run_sql(services: Services, call: Call) -> Answer:
    services.check_ready()
    wanted: SqlRequest = call.body()
    if not wanted.query.strip():
        raise invalid("query has no statement", field="query")
    if not 0 < wanted.limit <= MAX_SQL_ROWS:
        raise invalid(f"limit must be 1 to {MAX_SQL_ROWS}", field="limit")
    processes = services.looks.processes
    if (url := processes.own_url()) is None:
        detail = None if is_installed("duckdb") else {"install": install_command("sql")}
        what = "this server serves TLS itself, or listens at another address: use `topics sql --url`"
        raise TopicsError(Code.SQL_UNAVAILABLE, f"install {detail['install']}" if detail else what, detail=detail)
    token = call.request.key

    async def make() -> SqlAnswer:
        found = await processes.query(url, token, wanted.query, limit=wanted.limit)
        rows: list[Any] = [*map(Raw, found.rows)]
        return SqlAnswer(found.columns, rows, found.is_cut, performance(call.request))

    return _later(call, make, ends_with_client=True)


def get_replica(services: Services, call: Call) -> Answer:
    looks, standby, replication = services.looks, services.following, services.replication
    answer = ReplicaAnswer(role="none", stored=looks.newest(), performance=performance(call.request))
    answer.failure = looks.failure or None
    if standby is not None:
        following = standby.following
        answer.role, answer.writer, answer.lag_ms = "standby", following.writer.address, standby.lag_ms
        answer.failure, answer.failures = following.last_failure or answer.failure, standby.failures_total
    elif replication is not None:
        sequence, uploader = replication.sequence, replication.uploader
        answer.role, answer.lag_ms, answer.lag_bytes = "writer", replication.lag_ms, sequence.lag_bytes
        answer.uploads, answer.failures = uploader.objects_total, uploader.failures_total
        answer.failure = (sequence.last_failure if replication.is_away else None) or answer.failure
    answer.followers = followers(services)
    return json_answer(200, answer)


def followers(services: Services) -> list[FollowerInfo]:
    """Return the servers that follow this one; of a standby, itself."""
    found = [] if services.replication is None else services.replication.followers
    if services.standby is not None and services.following is not None:
        found = [services.standby.announced(services.following)]
    return [FollowerInfo(one.name, one.address, one.takes_over, one.lag_ms) for one in found]


def promote(services: Services, call: Call) -> Answer:
    """Let a standby take over. This server ends, so that the answer says only that the switch has begun."""
    wanted: PromoteRequest = call.body()
    names = [one.name for one in followers(services) if one.takes_over]
    if wanted.to not in names:
        what = f"this server knows the standbys {', '.join(names)}" if names else "no standby follows this server"
        raise invalid(f"{what}: `topics replica promote` asks the bucket", field="to")
    services.audit.note("promote", wanted.to, call.caller.name, call.request.peer.rpartition(":")[0])
    looks = services.looks
    assert looks.url is not None, "a server with followers has a replica"
    words = "replica", "promote", looks.url, "--to", wanted.to, "--json"

    async def make() -> Promoted:
        try:
            await looks.processes.run(*words, limit_s=PROMOTE_S)
        except TopicsError as error:
            if error.code is not Code.SHUTTING_DOWN:
                raise
        return Promoted(wanted.to, performance(call.request))

    return _later(call, make)
