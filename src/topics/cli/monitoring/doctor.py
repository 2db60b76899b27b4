"""`topics doctor`: what is wrong with a server or with this machine, and how to fix it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from topics import __version__
from topics.cli.command import Args, Call, Command, registering
from topics.cli.connect.server import get
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED
from topics.cli.output.units import duration, size
from topics.client.call import Request
from topics.client.errors import TopicsError, Unreachable
from topics.errors import Code
from topics.plurals import counted

LOW_SHARE = 0.1  # of a limit that is left
MAX_SKEW_S = 5.0
FEW_DESCRIPTORS = 4096
STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


class Finding(NamedTuple):
    """The result of one check. `fix` says what to do about a warning or a problem."""

    check: str
    level: str
    text: str
    fix: str = ""


class Facts:
    """What the checks look at: the answers of the server, fetched once."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.metrics: dict[str, Any] = {}
        self.is_reachable = False


Check = Callable[[Facts], Iterator[Finding]]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", default=os.environ.get("TOPICS_DATA_DIR") or None,
        help="data directory on this machine, to check its disk [TOPICS_DATA_DIR]",
    )  # fmt: skip


def _request(args: Args) -> Request:
    return get("/v0/health")


# --- checks


def _check_address(facts: Facts) -> Iterator[Finding]:
    target = facts.call.server.target
    key = (
        f"with the key of {target.token_file}"
        if target.token_file
        else "with a key"
        if target.token
        else "without a key"
    )
    yield Finding("address", "ok", f"{target.url}, from {target.source}, {key}")


def _check_server(facts: Facts) -> Iterator[Finding]:
    """Check that the server answers, its version, and its clock."""
    began_s = time.time()
    try:
        body, response = facts.call.server.send_once(_request(facts.call.args))
    except TopicsError as error:
        fix = "see the log of the server"
        if isinstance(error, Unreachable):
            fix = facts.call.server.failure(error).next_step
        elif error.status in (401, 403):
            fix = "pass --token-file, or add the key to the context"
        yield Finding("server", "problem", error.message, fix)
        return
    facts.is_reachable = True
    took_s = time.time() - began_s
    health = json.loads(body)
    yield Finding("server", "ok", f"answers in {duration(took_s * 1000)}, up {duration(health['uptime_ms'])}")
    same = health["version"] == __version__
    fix = "" if same else "use the same version on both sides; newer fields may be missing"
    text = f"server {health['version']}, this command {__version__}"
    yield Finding("version", "ok" if same else "warning", text, fix)
    yield from _check_clock(response.getheader("date"), began_s + took_s / 2)


def _check_clock(date: str | None, now_s: float) -> Iterator[Finding]:
    from email.utils import parsedate_to_datetime

    if date is None:
        return
    skew_s = parsedate_to_datetime(date).timestamp() + 0.5 - now_s  # the header has whole seconds
    if abs(skew_s) <= MAX_SKEW_S:
        yield Finding("clock", "ok", "the clocks of both machines agree")
        return
    side = "ahead of" if skew_s > 0 else "behind"
    fix = "synchronize both clocks with NTP; `read --ago` and TTLs use them"
    yield Finding("clock", "warning", f"the server is {duration(abs(skew_s) * 1000)} {side} this machine", fix)


def _check_ready(facts: Facts) -> Iterator[Finding]:
    if not facts.is_reachable:
        return
    try:
        ready = facts.call.server.json(get("/v0/ready"))
        yield Finding("ready", "ok", f"serves {counted(ready['topics'], 'topic')}")
    except TopicsError as error:
        fixes: dict[str, str] = {
            Code.READ_ONLY: "free space on its disk; writes resume by themselves",
            Code.NOT_READY: "wait: the server replays its log",
        }
        yield Finding("ready", "problem", error.message, fixes.get(error.code, "see the log of the server"))


def _check_limits(facts: Facts) -> Iterator[Finding]:
    """Check how close the server is to its limits."""
    if not facts.is_reachable:
        return
    try:
        facts.metrics = metrics = facts.call.server.json(get("/v0/metrics"))
    except TopicsError as error:
        yield Finding(
            "limits", "warning", f"the metrics cannot be read: {error.message}", "use a key with the scope read"
        )
        return
    memory = sum((metrics.get("topics_memory_charged_bytes") or {}).values())
    budget = metrics.get("topics_memory_budget_bytes", 0)
    fix = "raise TOPICS_MEMORY_BUDGET_BYTES, or send smaller requests"
    yield _limit("memory", memory, budget, f"{size(memory)} of {size(budget)} for clients", fix)
    used, most = metrics.get("topics_http_connections", 0), metrics.get("topics_http_connections_max", 0)
    fix = "raise TOPICS_MAX_CONNECTIONS and `ulimit -n` of the server"
    yield _limit("connections", used, most, f"{used:,} of {most:,} connections", fix)
    lost = metrics.get("topics_topic_lost") or {}
    losing = sorted((name for name in lost if lost[name]), key=lambda name: -lost[name])[:3]
    if losing:
        names = ", ".join(f"{name} ({lost[name]:,})" for name in losing)
        fix = "raise the cap or TTL with `topics config`, or use --discard reject; `topics read` shows the gaps"
        yield Finding("losses", "warning", f"records were lost in {names}", fix)
    else:
        yield Finding("losses", "ok", "no topic has lost records")


def _limit(name: str, used: float, most: float, text: str, fix: str) -> Finding:
    is_low = bool(most) and used > most * (1 - LOW_SHARE)
    return Finding(name, "warning" if is_low else "ok", text, fix if is_low else "")


def _check_queues(facts: Facts) -> Iterator[Finding]:
    """Check for jobs that no worker claims, and for dead letters that cannot move."""
    if not facts.metrics:
        return
    ready = facts.metrics.get("topics_topic_queue_ready") or {}
    held = facts.metrics.get("topics_topic_queue_in_flight") or {}
    for name, jobs in ready.items():
        if jobs and not held.get(name):
            fix = f"start a worker: `topics queue work {name} -- COMMAND`"
            yield Finding("queues", "warning", f"{name}: {counted(jobs, 'job')} ready, and no worker holds one", fix)
    held_routers = [name for name, held in (facts.metrics.get("topics_router_held") or {}).items() if held]
    for name in held_routers:
        yield Finding("routers", "warning", f"{name} waits for its destination", "`topics router ls` shows why")


def _check_replica(facts: Facts) -> Iterator[Finding]:
    """Check that the replica follows. A server that another one has taken over is not ready, and says so."""
    if "topics_replica_term" not in facts.metrics:
        return
    lag = duration(facts.metrics["topics_replica_lag_ms"])
    if facts.metrics["topics_replica_away"]:
        fix = "check the bucket: GET /v0/ready has the last failure"
        yield Finding("replica", "problem", f"the bucket does not answer; it is {lag} behind", fix)
    else:
        yield Finding("replica", "ok", f"object {facts.metrics['topics_replica_object']:,}, {lag} behind")


def _check_disk(facts: Facts) -> Iterator[Finding]:
    directory = facts.call.args.data_dir
    if directory is None:
        return
    if not os.path.isdir(directory):
        yield Finding("disk", "problem", f"{directory} does not exist", "correct TOPICS_DATA_DIR or --data-dir")
        return
    disk = shutil.disk_usage(directory)
    low = disk.free < disk.total * LOW_SHARE
    text = f"{size(disk.free)} of {size(disk.total)} free for {directory}"
    fix = "free space, or move the directory: a full disk makes the server read-only" if low else ""
    yield Finding("disk", "warning" if low else "ok", text, fix)


def _check_machine(facts: Facts) -> Iterator[Finding]:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft if hard == resource.RLIM_INFINITY else hard
    few = most < FEW_DESCRIPTORS
    fix = f"raise it with `ulimit -n {FEW_DESCRIPTORS * 4}` before `topics serve`" if few else ""
    yield Finding("descriptors", "warning" if few else "ok", f"this shell may open {most:,} files", fix)


def _check_settings(facts: Facts) -> Iterator[Finding]:
    """Check the settings that `topics serve` would read from this environment."""
    from topics.config import BadSettings, Settings, unknown_variables

    unknown = unknown_variables(os.environ)
    for line in unknown:
        yield Finding("settings", "warning", line, "correct or unset the variable")
    try:
        Settings.load(os.environ, {})
    except BadSettings as bad:
        for problem in bad.problems:
            yield Finding("settings", "problem", problem, "`topics settings` prints the settings in force")
        return
    if not unknown:
        yield Finding("settings", "ok", "the TOPICS_* variables of this shell are valid")


CHECKS: tuple[Check, ...] = (
    _check_settings, _check_machine, _check_disk, _check_address, _check_server, _check_ready, _check_limits,
    _check_queues, _check_replica,
)  # fmt: skip


def _run(call: Call) -> int:
    facts = Facts(call)
    findings = [finding for check in CHECKS for finding in check(facts)]
    worst = max((finding.level for finding in findings), key=["ok", "warning", "problem"].index)
    if not call.screen.is_human:
        for finding in findings:
            call.screen.json({**finding._asdict(), "fix": finding.fix or None})
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            mark = call.screen.paint({"ok": "✓", "warning": "!", "problem": "✗"}[finding.level], STYLES[finding.level])
            call.screen.line(f"{mark} {finding.check.ljust(width)}  {finding.text}")
            if finding.fix:
                call.screen.line(f"  {' ' * width}  {call.screen.paint('→ ' + finding.fix, 'cyan')}")
    return EXIT_FAILED if worst == "problem" else EXIT_DONE


DOCTOR = Command(
    name="doctor",
    arguments=_arguments,
    request=_request,
    run=_run,
    details="The exit status is 1 if there is a problem; warnings do not change it.",
    examples="  topics doctor\n  topics doctor --context prod --json\n",
)
register = registering(DOCTOR)
