"""`topics doctor`: what is wrong with a server or with this machine, and how to fix it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from topics import __version__
from topics.cli.command import Call, Command
from topics.cli.connect import get
from topics.cli.options import option
from topics.cli.output.failures import EXIT_DONE, EXIT_FAILED
from topics.cli.output.units import duration, size
from topics.client.errors import TopicsError
from topics.plurals import counted

LOW_SHARE = 0.1  # of a limit that is left
MAX_SKEW_S = 5.0
FEW_DESCRIPTORS = 4096
LOOK_AGAIN_S = 1.0
SEE_LOG = "see the log of the server"
LIMITS = "raise the cap or TTL with `topics config`, or use --discard reject, if readers still need them"
LOSSES = {
    "cap": ("ok", "caps evicted records of", LIMITS),
    "ttl": ("ok", "TTLs expired records of", LIMITS),
    "restart": ("warning", "a restart lost records of", "use durability disk or fsync if they must survive a crash"),
    "failover": (
        "warning",
        "a takeover lost records of",
        "use durability replicated if they must survive a lost machine",
    ),
    "mixed": ("warning", "several causes took records of", "`topics state TOPIC --ranges` shows what is known of each"),
    "corrupt": (
        "problem",
        "damaged files lost records of",
        "stop the server, and run `topics verify DIR`: it names the files. "
        "`topics repair DIR --from BACKUP` fetches what no reader has met yet",
    ),
}
MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "red")}


class Finding(NamedTuple):
    """The result of one check. `fix` says what to do about a warning or a problem."""

    check: str
    level: str
    text: str
    fix: str = ""


def _warning_if(wrong: bool, check: str, text: str, fix: str) -> Finding:
    return Finding(check, "warning", text, fix) if wrong else Finding(check, "ok", text)


# --- checks


def _check_server(call: Call) -> Iterator[Finding]:
    """Check the address. If the server answers, check its version, its clock, and what it reports."""
    target = call.server.target
    key = "with a key" if target.token else "without a key"
    if target.token_file:
        key = f"with the key of {target.token_file}"
    yield Finding("address", "ok", f"{target.url}, from {target.source}, {key}")
    began_s = time.time()
    try:
        body, response = call.server.send_once(call.request(call.args))
    except TopicsError as error:
        yield Finding("server", "problem", error.message, call.server.failure(error).next_step or SEE_LOG)
        return
    took_s = time.time() - began_s
    health = json.loads(body)
    yield Finding("server", "ok", f"answers in {duration(took_s * 1000)}, up {duration(health['uptime_ms'])}")
    fix = "use the same version on both sides; newer fields may be missing"
    text = f"server {health['version']}, this command {__version__}"
    yield _warning_if(health["version"] != __version__, "version", text, fix)
    if (date := response.getheader("date")) is not None:
        yield _check_clock(date, began_s + took_s / 2)
    yield _check_ready(call)
    yield from _check_limits(call)


def _check_clock(date: str, now_s: float) -> Finding:
    from email.utils import parsedate_to_datetime

    skew_s = parsedate_to_datetime(date).timestamp() + 0.5 - now_s  # the header has whole seconds
    if abs(skew_s) <= MAX_SKEW_S:
        return Finding("clock", "ok", "the clocks of both machines agree")
    side = "ahead of" if skew_s > 0 else "behind"
    fix = "synchronize both clocks with NTP; `read --ago` and TTLs use them"
    return Finding("clock", "warning", f"the server is {duration(abs(skew_s) * 1000)} {side} this machine", fix)


def _check_ready(call: Call) -> Finding:
    try:
        ready = call.server.json(get("/v0/ready"))
        return Finding("ready", "ok", f"serves {counted(ready['topics'], 'topic')}")
    except TopicsError as error:
        return Finding("ready", "problem", error.message, call.server.failure(error).next_step or SEE_LOG)


def _check_limits(call: Call) -> Iterator[Finding]:
    """Check how close the server is to its limits, and its queues and routers."""
    try:
        metrics = call.server.json(get("/v0/metrics"))
    except TopicsError as error:
        text = f"the metrics cannot be read: {error.message}"
        yield Finding("limits", "warning", text, "use a key with the scope read")
        return
    memory = sum((metrics.get("topics_memory_charged_bytes") or {}).values())
    budget = metrics.get("topics_memory_budget_bytes", 0)
    fix = "raise TOPICS_MEMORY_BUDGET_BYTES, or send smaller requests"
    text = f"{size(memory)} of {size(budget)} for clients"
    yield _warning_if(bool(budget) and memory > budget * (1 - LOW_SHARE), "memory", text, fix)
    used, most = metrics.get("topics_http_connections", 0), metrics.get("topics_http_connections_max", 0)
    fix = "raise TOPICS_MAX_CONNECTIONS and `ulimit -n` of the server"
    text = f"{used:,} of {most:,} connections"
    yield _warning_if(bool(most) and used > most * (1 - LOW_SHARE), "connections", text, fix)
    yield _check_damage(metrics)
    yield from _check_losses(metrics)
    yield from _check_queues(metrics, call)
    if "topics_replica_term" in metrics:  # a server that another one has taken over is not ready, and says so
        text = f"object {metrics['topics_replica_object']:,}, {duration(metrics['topics_replica_lag_ms'])} behind"
        text = f"standby, {text}" if "topics_replica_standby" in metrics else text
        fix = "check the bucket: GET /v0/ready has the last failure"
        yield _warning_if(bool(metrics["topics_replica_away"]), "replica", text, fix)


def _check_damage(metrics: Mapping[str, Any]) -> Finding:
    """Report damage that no reader has met yet."""
    places, topics = metrics.get("topics_damaged_places", 0), metrics.get("topics_damaged_records") or {}
    if not places:
        return Finding("damage", "ok", "the scrub has found no damaged file")
    names = ", ".join(f"{name} ({topics[name]:,})" for name in sorted(topics, key=lambda name: -topics[name])[:3])
    text = f"{counted(places, 'damaged place')} in files; records at risk: {names or 'none'}"
    fix = "stop the server and run `topics repair DIR --from BACKUP`; log lines `damage_found` name the files"
    return Finding("damage", "problem", text, fix)


def _check_losses(metrics: Mapping[str, Any]) -> Iterator[Finding]:
    """Report what was lost for each reason. Damage is a problem; caps and TTLs do what they were configured to."""
    by_reason: dict[str, dict[str, int]] = {}
    for row, seqs in (metrics.get("topics_topic_lost_records") or {}).items():
        topic, _, reason = row.rpartition("/")
        by_reason.setdefault(reason, {})[topic] = seqs
    for reason, topics in by_reason.items():
        worst = sorted(topics, key=lambda name: -topics[name])[:3]
        names = ", ".join(f"{name} ({topics[name]:,})" for name in worst)
        level, what, fix = LOSSES.get(reason, LOSSES["mixed"])
        yield Finding("losses", level, f"{what} {names}", fix)
    if not by_reason:
        yield Finding("losses", "ok", "no topic has lost records")


def _idle(metrics: Mapping[str, Any]) -> dict[str, int]:
    """Return the queues with jobs that no worker holds. Dead letters need no worker."""
    held, letters = (metrics.get(f"topics_topic_{name}") or {} for name in ("queue_in_flight", "dead_letters"))
    ready = (metrics.get("topics_topic_queue_ready") or {}).items()
    return {name: jobs for name, jobs in ready if jobs and not held.get(name) and name not in letters}


def _check_queues(metrics: Mapping[str, Any], call: Call) -> Iterator[Finding]:
    """Check for jobs that no worker claims, and for dead letters that cannot move."""
    if idle := _idle(metrics):
        time.sleep(LOOK_AGAIN_S)  # a worker may hold nothing between two jobs
        again = _idle(call.server.json(get("/v0/metrics")))
        for name, jobs in ((name, jobs) for name, jobs in again.items() if name in idle):
            fix = f"start a worker: `topics queue work {name} -- COMMAND`"
            yield Finding("queues", "warning", f"{name}: {counted(jobs, 'job')} ready, and no worker holds one", fix)
    for name, waits in (metrics.get("topics_router_held") or {}).items():
        if waits:
            yield Finding("routers", "warning", f"{name} waits for its destination", "`topics router ls` shows why")


def _check_disk(directory: str) -> Finding:
    if not os.path.isdir(directory):
        return Finding("disk", "problem", f"{directory} does not exist", "correct TOPICS_DATA_DIR or --data-dir")
    disk = shutil.disk_usage(directory)
    text = f"{size(disk.free)} of {size(disk.total)} free for {directory}"
    fix = "free space, or move the directory: a full disk makes the server read-only"
    return _warning_if(disk.free < disk.total * LOW_SHARE, "disk", text, fix)


def _check_machine() -> Finding:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft if hard == resource.RLIM_INFINITY else hard
    fix = f"raise it with `ulimit -n {FEW_DESCRIPTORS * 4}` before `topics serve`"
    return _warning_if(most < FEW_DESCRIPTORS, "descriptors", f"this shell may open {most:,} files", fix)


def _check_settings(directory: str) -> Iterator[Finding]:
    """Check the settings that `topics serve` would read from this environment, with this directory."""
    from topics.config import BadSettings, Settings, unknown_variables

    unknown = unknown_variables(os.environ)
    for line in unknown:
        yield Finding("settings", "warning", line, "correct or unset the variable")
    try:
        Settings.load(os.environ, {"data_dir": directory})
    except BadSettings as bad:
        for problem in bad.problems:
            yield Finding("settings", "problem", problem, "`topics settings` prints the settings in force")
        return
    if not unknown:
        yield Finding("settings", "ok", "the TOPICS_* variables of this shell are valid")


@Command(
    "doctor",
    options=(
        option("--data-dir DIR", "data directory on this machine, to check its disk [TOPICS_DATA_DIR]",
               env="TOPICS_DATA_DIR"),
    ),
    request=lambda args: get("/v0/health"),
    details="The exit status is 1 if there is a problem; warnings do not change it.",
    examples="  topics doctor\n  topics doctor --context prod --json\n",
)  # fmt: skip
def doctor(call: Call) -> int:
    directory = call.args.data_dir
    disk = [] if directory is None else [_check_disk(directory)]
    # `serve` may get its directory as an option: a shell that has TOPICS_REPLICA alone is no problem.
    findings = [*_check_settings(directory or "data"), _check_machine(), *disk, *_check_server(call)]
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = call.screen.paint(*MARKS[finding.level])
        text = f"{mark} {finding.check.ljust(width)}  {finding.text}"
        if finding.fix:
            text += f"\n  {' ' * width}  {call.screen.paint('→ ' + finding.fix, 'cyan')}"
        call.screen.result({**finding._asdict(), "fix": finding.fix or None}, text)
    return EXIT_FAILED if any(finding.level == "problem" for finding in findings) else EXIT_DONE


register = doctor.register
