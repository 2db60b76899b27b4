"""Mirror: copy topics of one server to another, or in both directions, until they hold the same records.

A copy keeps node, tag, meta and data, and lists the servers that it has been on (`task`), which prevents loops.
The position of each direction is saved on its target server before and after each step (`positions`). Tasks copy
(`task`), on Spark or in this process: several topics at the same time, and each topic in order.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Unpack

from topics.client import Client
from topics.client.request import Record
from topics.errors import Code, TopicsError
from topics.lake import Lake, NoLake
from topics.lake.storage import real_location, set_options
from topics.spark.pipelines.mirror.link import Link
from topics.spark.pipelines.mirror.task import CopyTask, MirrorResult, copy, rehearse
from topics.spark.pipelines.run import positions
from topics.spark.pipelines.run.job import RUNS, BadUsage, Failed, JobOptions, PipelineJob
from topics.spark.pipelines.run.report import RunReport
from topics.spark.pipelines.run.selection import Selection
from topics.spark.pipelines.run.tasks import Workload

STEP_SEQS = 50_000  # most seqs of a topic in one step, so that topics take turns
ALL_SEQS = 1 << 62
IDLE_S = 0.25
EFFORT = 10  # a copied record takes about ten times as long as an archived one
IDENTITY = "sys:identity"
IDENTITY_CONFIG = {"durability": "fsync"}
NEW = "(new)"  # in a dry run: a server without a name
_is_name = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
EXCLUDED = (RUNS, IDENTITY, positions.TOPIC)  # topics of pipelines, which are never mirrored


def mirror(
    *,
    source: str,
    target: str,
    prefix: str | None = None,
    topics: Sequence[str] = (),
    both_ways: bool = False,
    follow: bool = False,
    only_local: bool = False,
    lake: str | None = None,
    skip_trimmed: bool = False,
    source_name: str | None = None,
    target_name: str | None = None,
    source_nodes: Sequence[str] = (),
    target_nodes: Sequence[str] = (),
    source_token_file: str | None = None,
    target_token_file: str | None = None,
    step_seqs: int = STEP_SEQS,
    positions_topic: str = positions.TOPIC,
    **options: Unpack[JobOptions],
) -> RunReport:
    """Copy from `source` to `target`, and back with `both_ways`; once, or with `follow` until the job is stopped.

    `lake` is the lake of the source: records that the source no longer has come from there. Without it, a topic that
    was trimmed before it was copied is not copied, and the report says so; `skip_trimmed` continues after the trimmed
    seqs. `source_nodes` and `target_nodes` are nodes that write only on that server: their copies are then left out
    by the node filter of the other server, instead of being read and recognised.
    """
    source, target = source.rstrip("/"), target.rstrip("/")
    if prefix is None and not topics:
        raise BadUsage("choose topics: by a prefix, which may be empty, or by their names")
    if source == target:
        raise BadUsage(f"{source} is both source and target")
    if lake is not None:
        set_options(options.get("storage_options") or {})
        lake = _existing(lake)
        if skip_trimmed:
            raise BadUsage("lake and skip_trimmed: a lake has the trimmed records; give one of them")
    wanted = Selection(prefix=prefix, topics=tuple(topics), has_system=True)
    excluded = (*EXCLUDED, positions_topic)
    keys = {source: source_token_file, target: target_token_file}
    with (
        PipelineJob("mirror", servers=[source, target], token_files=keys, **options) as job,
        ExitStack() as open_clients,
    ):
        job.step(f"looking at {source} and {target}")
        one, other = (open_clients.enter_context(job.client(url)) for url in (source, target))
        sources = [one, other] if both_ways else [one]
        there = {row.topic for client in sources for row in wanted.among(client) if row.topic not in excluded}
        wanted.check(sources, there, job.warn, follow=follow)
        job.report.looked_at = len(there)
        one_id, other_id = _identities(job, (one, source_name), (other, target_name))

        def link(here: Client, there: Client, ids: tuple[str, str], nodes: Sequence[str], lake: str | None) -> Link:
            task = CopyTask(
                source=job.connection(here.url), target=job.connection(there.url), source_id=ids[0], target_id=ids[1],
                topic="", epoch=0, start=0, stop=0, nodes=tuple(nodes), only_local=only_local,
                lake=lake, heeds_trims=lake is None and not skip_trimmed,
            )  # fmt: skip
            step = ALL_SEQS if job.dry_run else step_seqs
            return Link(
                job, wanted, here, there, task,
                step_seqs=step, positions_topic=positions_topic, excluded=excluded,
            )  # fmt: skip

        links = [link(one, other, (one_id, other_id), target_nodes, lake)]
        if both_ways:
            links.append(link(other, one, (other_id, one_id), source_nodes, None))
        _run(job, links, follow=follow)
    return job.report


def _identities(job: PipelineJob, *servers: tuple[Client, str | None]) -> tuple[str, ...]:
    """Return the identities of servers, each with the name that it may get. Raise `BadUsage` if they are the same."""
    found = tuple(identity(client, name=name, dry_run=job.dry_run) for client, name in servers)
    if len(set(found)) < len(found) and found[0] != NEW:
        urls = " and ".join(client.url for client, _ in servers)
        raise BadUsage(
            f"{urls} are both called {found[0]!r}: one is a copy of the other",
            next=f"delete the topic {IDENTITY} on the one that is the copy",
        )
    return found


def _run(job: PipelineJob, links: Sequence[Link], *, follow: bool) -> None:
    if job.dry_run:
        for link in links:
            link.aim()
        _step(job, links, follow=False)
        return
    job.sums_lags = True
    job.step("copying")
    if follow:
        for _ in job.rounds(follow=True):
            if not _step(job, links, follow=True):
                job.rest()
                job.stopping.wait(IDLE_S)
    else:
        # With both ways, the second pass reads the copies that the first pass wrote, and recognises them as copies.
        for _ in links:
            for link in links:
                link.aim()
            while _step(job, links, follow=False):
                pass


def _step(job: PipelineJob, links: Sequence[Link], *, follow: bool) -> bool:
    """Plan and run one step of all directions. Return False if there was nothing to do."""
    plans: list[tuple[Link, list[CopyTask]]] = [(link, link.plan(follow=follow)) for link in links]
    tasks = [task for _, planned in plans for task in planned]
    if not tasks:
        return False
    job.work()
    do = rehearse if job.dry_run else copy
    seqs = sum(link.backlog.seqs for link in links)
    size_bytes = sum(link.backlog.size_bytes for link in links)
    work = Workload(seqs=seqs, size_bytes=size_bytes, effort=EFFORT)
    outcomes = job.tasks(work).run(tasks, do, result=MirrorResult, weight=lambda task: task.stop - task.start)
    at = 0
    for link, planned in plans:
        (link.expect if job.dry_run else link.save_results)(planned, outcomes[at : at + len(planned)])
        at += len(planned)
    job.progress.show(job.report.records)
    return True


def _existing(lake: str) -> str:
    try:
        Lake(lake).check_exists()
    except NoLake as error:
        raise BadUsage(str(error)) from None
    return real_location(lake)


# --- the name of a server
#
# An address may change, and two networks may use the same one. So the name of a server is a record on the server: the
# first one in `sys:identity`. It moves with the data directory and is part of a backup.


def identity(client: Client, *, name: str | None = None, dry_run: bool = False) -> str:
    """Return the name of the server, and store one if it has none. Raise `BadUsage` if it has another than `name`."""
    if name is not None and _is_name(name) is None:
        raise BadUsage(f"{name!r} is not a server name: use 1 to 64 letters, digits, dots, dashes and underscores")
    known = _known(client)
    if known is None and not dry_run:
        _store_name(client, name)
        known = _known(client) or name
    if known is None:
        return name or NEW
    if name is not None and name != known:
        raise BadUsage(
            f"the server at {client.url} is called {known!r}, not {name!r}; copies of its records carry that name",
            next="remove the name from the command, or use the existing one",
        )
    return known


def _known(client: Client) -> str | None:
    try:
        for item in client.read(IDENTITY):
            if isinstance(item, Record):
                return str(item.value["id"])
    except TopicsError as error:
        if error.code not in (Code.TOPIC_NOT_FOUND, Code.FORBIDDEN):
            raise
    return None


def _store_name(client: Client, name: str | None) -> None:
    """Store the name of this server on it. If two runs do this at once, both use the first record."""
    record = {"data": {"id": name or secrets.token_hex(8)}}
    try:
        client.append(IDENTITY, [record], create=True, config=IDENTITY_CONFIG)
    except TopicsError as error:
        if error.code is not Code.FORBIDDEN:
            raise
        if name is None:
            raise Failed(
                f"the key may not write to {IDENTITY} of {client.url}, where a server's name for mirrors is kept",
                next="run once with a key that may write, or always pass the same --from-name or --to-name",
            ) from None
