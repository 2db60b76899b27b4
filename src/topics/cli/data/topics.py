"""`topics ls`, `create`, `config`, `state`, `rm` and `delete`: list topics, and change them or their records."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from topics.cli.command import Args, Call, Command
from topics.cli.connect import delete, get, post, put
from topics.cli.options import TOPIC, option
from topics.cli.output.failures import EXIT_DONE, EXIT_NOT_FOUND, option_of, usage
from topics.cli.output.screen import Cell, Columns, Styled, confirm, highlighted
from topics.cli.output.units import (
    count,
    duration,
    moment,
    parse_count,
    parse_duration,
    parse_seqs,
    parse_size,
    rate,
    size,
)
from topics.cli.tree import Subparsers
from topics.client.call import Request, given, tag_match, topic_path
from topics.clock import SystemClock
from topics.errors import Code, TopicsError
from topics.plurals import counted

LIMITS = ("ttl", "cap-records", "cap-bytes")
MAX_RANGES = 2000  # the most that the server returns
LOST_SHOWN = 3
# States of a range, and their styles. Any other state is the reason of a loss.
KEPT_STATES = {"live": "green", "deleted": "dim", "archived": "dim", "merged": ""}


# --- the configuration fields of a topic as options: `ttl_ms` is `--ttl 7d`


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rate(text: str) -> Any:
    """Return `10` as a rate of 10 jobs in a second."""
    found = _json_or_text(text)
    return {"per_s": found} if type(found) in (int, float) else found


# How the value of a field is read and printed, by its placeholder.
KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "DURATION": (parse_duration, duration), "SIZE": (parse_size, size), "N": (parse_count, count),
    "RATE": (_rate, json.dumps), "JSON": (_json_or_text, json.dumps), "NUMBER": (_json_or_text, str),
    "BOOL": (_json_or_text, str),
}  # fmt: skip


class Field(NamedTuple):
    """One field: the placeholder of its value, and what it means."""

    name: str
    metavar: str
    help: str
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        return option_of(self.name)

    @property
    def is_for_queues(self) -> bool:
        return self.help.startswith("queues:")

    def shown(self, value: Any) -> str:
        """Return a value of the configuration for a person."""
        _, show = KINDS.get(self.metavar, (str, str))
        if value is None or (value == 0 and show is not str and self.name != "claim_jitter_ms"):
            return "off"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return show(value)


FIELDS = (
    Field("type", "TYPE", "log, or queue for jobs; cannot change later", ("log", "queue")),
    Field("durability", "CLASS", "when a write is acknowledged: ephemeral, memory, disk, fsync [disk]",
          ("ephemeral", "memory", "disk", "fsync", "replicated")),
    Field("ttl_ms", "DURATION", "records older than this expire; 0 is never"),
    Field("cap_records", "N", "most records; 0 is no limit"),
    Field("cap_bytes", "SIZE", "most bytes; 0 is no limit"),
    Field("discard", "WHAT", "at a cap: old evicts the oldest, reject refuses the write [old]", ("old", "reject")),
    Field("priority", "NUMBER", "order of service under pressure, -1000 to 1000"),
    Field("auto_priority", "BOOL", "serve topics first that were read recently [true]"),
    Field("auto_create", "BOOL", "let the server create the dead-letter topic [true]"),
    Field("idempotency_window_ms", "DURATION", "how long a key of `append --key` is remembered [2m]"),
    Field("dedupe_node", "BOOL", "let readers skip their own records [true]"),
    Field("lease_ms", "DURATION", "queues: how long a worker holds a job [30s]"),
    Field("claim_jitter_ms", "DURATION", "queues: collect claims for this long and share the jobs"),
    Field("max_deliveries", "N", "queues: after this many deliveries, move the job to the dead letters"),
    Field("dead_letter", "TOPIC", "queues: topic for the dead letters"),
    Field("leases_durable", "BOOL", "queues: leases survive a restart [false]"),
    Field("retry", "JSON",
          "queues: delay of failed jobs: null, or '{\"min_ms\": 1000, \"max_ms\": 300000, \"factor\": 2}'"),
    Field("max_in_flight", "N", "queues: most jobs held at a time"),
    Field("max_in_flight_per_key", "N", "queues: most jobs of one key held at a time [1]"),
    Field("rate", "RATE", "queues: most deliveries in a second: 10, or null, or '{\"per_s\": 10, \"burst\": 5}'"),
    Field("rate_per_key", "RATE", "queues: the same for each key"),
    Field("paused", "BOOL", "queues: give out no jobs [false]"),
)  # fmt: skip
BY_NAME = {field.name: field for field in FIELDS}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("configuration")
    for field in FIELDS:
        # Without the option there is no attribute, because `--rate null` is a value, too.
        parse, _ = KINDS.get(field.metavar, (str, str))
        row: dict[str, Any] = {"type": parse, "choices": field.choices or None, "default": argparse.SUPPRESS}
        option(f"{field.flag} {field.metavar}", field.help, dest=f"config_{field.name}", **row)(group)
    option(
        "--set FIELD=JSON", "set any field of the API, such as archive='{\"hold\": true}'",
        dest="config_set", type=_assignment, action="append", default=[],
    )(group)  # fmt: skip


def chosen(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that the options set."""
    given = vars(args)
    fields = {field.name: given[dest] for field in FIELDS if (dest := f"config_{field.name}") in given}
    return fields | dict(args.config_set)


def _assignment(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=JSON")
    return name, _json_or_text(value)


# --- ls

TOPIC_COLUMNS: Columns = {
    "topic": lambda row: Styled(row["topic"], "bold"),
    "type": lambda row: row["type"],
    "records>": lambda row: count(row["count"]),
    "size>": lambda row: size(row["bytes"]),
    "head>": lambda row: count(row["head_seq"]),
    "lag>": lambda row: highlighted(row["lag"], "yellow") if "lag" in row else "",
    "lost>": lambda row: Styled(count(row["lost"]), "red") if row.get("lost") else "",
    "rate>": lambda row: rate(row["rate"]),
    "jobs": lambda row: (
        f"{row.get('ready', 0):,} ready, {row.get('in_flight', 0):,} in flight" if row["type"] == "queue" else ""
    ),
}


@Command(
    "ls",
    options=(
        option("[PATTERN]", "a prefix, or a pattern such as 'chat-*'", default="", completes="topics"),
        option("--rates DURATION", "measure the records per second over this time [1s]", nargs="?", const=1000),
        option("--sort", "order [name]", choices=("name", "records", "size", "rate", "lag"), default="name"),
    ),
    request=lambda args: get("/v0/topics", prefix=args.pattern.partition("*")[0] or None, details=True),
    details="The lag is that of the slowest router or named consumer that reads the topic.",
    examples="  topics ls\n  topics ls 'chat-*' --rates 5s --sort rate\n  topics ls | jq -r .topic\n",
)
def ls(call: Call) -> None:
    found, lags = _listed(call), call.server.lags()
    for topic, row in found.items():
        row |= {"lag": lags[topic]} if topic in lags else {}
        row |= {name: row["queue"][name] for name in ("ready", "in_flight")} if "queue" in row else {}
    window_ms = call.args.rates or (1000 if call.args.sort == "rate" else 0)
    if window_ms:
        began = time.monotonic()
        time.sleep(window_ms / 1000)
        later, took_s = _listed(call), time.monotonic() - began
        for topic, row in found.items():
            grown = later.get(topic, row)["head_seq"] - row["head_seq"]
            row["rate"] = round(max(grown, 0) / took_s, 1)
    rows = sorted(found.values(), key=lambda row: row["topic"])
    if call.args.sort != "name":
        member = {"records": "count", "size": "bytes"}.get(call.args.sort, call.args.sort)
        rows.sort(key=lambda row: -(row.get(member) or 0))
    shown = dict(TOPIC_COLUMNS)
    if not any(row.get("lost") for row in rows):
        del shown["lost>"]
    if not window_ms:
        del shown["rate>"]
    call.screen.rows(rows, shown, empty="no topics; `topics append NAME 'hello'` creates one")
    if call.screen.is_human and rows:
        records, total = sum(row["count"] for row in rows), sum(row["bytes"] for row in rows)
        call.screen.note(f"{counted(len(rows), 'topic')}, {counted(records, 'record')}, {size(total)}")


def _listed(call: Call) -> dict[str, dict[str, Any]]:
    pattern = call.args.pattern
    rows = call.server.rows(call.request(call.args).path, "topics")
    return {row["topic"]: row for row in rows if "*" not in pattern or fnmatchcase(row["topic"], pattern)}


# --- create and config


def _put(args: Args) -> Request:
    return put(topic_path(args.topic), {"defaults": "safe", **chosen(args)})


def _state(args: Args) -> Request:
    return get(topic_path(args.topic, touch=False))


@Command(
    "create",
    options=(
        option("TOPIC", "name of the topic: letters, digits, and . _ : -", completes="topics"),
        add_options,
    ),
    request=_put,
    details="The first append creates a topic with the defaults, so this is for other settings.",
    examples="""\
  topics create orders --durability fsync --cap-records 1M
  topics create mail --type queue --max-deliveries 3 --dead-letter mail.dead
  topics create sessions --ttl 30m
""",
)
def create(call: Call) -> None:
    before = _config_before(call)
    answer = call.ask()
    is_same = not answer["created"] and before == answer["config"]
    if call.screen.is_human:
        word = "created" if answer["created"] else "unchanged:" if is_same else "already there; configuration updated:"
        call.screen.line(f"{call.screen.paint(word, 'green')} {answer['topic']}")
        if not answer["created"]:
            call.screen.fields(answer, _config_rows(answer["config"]))
    else:
        call.screen.json(answer)
    _warn_of_options(call, answer)


def _config_before(call: Call) -> dict[str, Any] | None:
    """Return the configuration of the topic, or None if there is none or the key may not read it."""
    try:
        config: dict[str, Any] = call.server.json(_state(call.args))["config"]
        return config
    except TopicsError as error:
        if error.code in (Code.TOPIC_NOT_FOUND, Code.FORBIDDEN):
            return None
        raise


def _warn_of_options(call: Call, answer: Mapping[str, Any]) -> None:
    """Warn of options that were given and have no effect, and of what the server warns of."""
    config = answer["config"]
    for warning in answer.get("warnings", ()):
        call.screen.warn(warning)
    topic, patch = call.args.topic, chosen(call.args)
    given = [field.flag for field in FIELDS if field.name in patch and field.is_for_queues]
    if config["type"] != "queue":
        if given:
            flags = f"{', '.join(given)} {'has' if len(given) == 1 else 'have'} no effect"
            call.screen.warn(f"{topic} is a log, so {flags}; `topics create NAME --type queue` creates a queue")


@Command(
    "config",
    options=(TOPIC, add_options),
    request=lambda args: _put(args) if chosen(args) else _state(args),
    details="Options change it; an option that is left out keeps its value. The settings of the server itself are "
    "`topics settings`.",
    examples="  topics config orders\n  topics config orders --ttl 7d --cap-bytes 1GiB\n",
)
def config(call: Call) -> None:
    if chosen(call.args):
        call.server.json(_state(call.args))  # a PUT would create a topic with this name
    answer = call.ask()
    call.screen.fields(answer["config"], _config_rows(answer["config"]))
    _warn_of_options(call, answer)


def _config_rows(config: Mapping[str, Any]) -> Iterator[tuple[str, Cell]]:
    for name, value in config.items():
        field = BY_NAME.get(name)
        if field is not None and (config["type"] == "queue" or not field.is_for_queues):
            yield field.flag.removeprefix("--"), field.shown(value)


# --- state


def _timeline(args: Args) -> Request:
    return get(topic_path(args.topic, "timeline", ranges=MAX_RANGES))


@Command(
    "state",
    options=(TOPIC, option("--ranges", "print what has become of each seq: live, deleted, or why it was lost")),
    request=lambda args: _timeline(args) if args.ranges else _state(args),
    examples="""\
  topics state orders
  topics state orders --ranges                 which seqs were lost, and why
  topics state orders | jq .head_seq
  topics state orders | jq '.lost, .lost_ranges'
""",
)
def state(call: Call) -> None:
    answer = call.ask()
    if call.args.ranges:
        call.screen.rows(answer["ranges"], RANGE_COLUMNS)
        if call.screen.is_human and answer["resolution"] > 1:
            call.screen.note(f"there are too many ranges: those shorter than {answer['resolution']} seqs are merged")
        return
    timeline = call.server.json(_timeline(call.args))
    ranges = [row for row in timeline["ranges"] if row["state"] not in KEPT_STATES or row.get("lost")]
    answer = {**answer, "lost": timeline["lost"], "lost_ranges": ranges}
    call.screen.fields(answer, _state_rows(answer, _lost_texts(ranges)))


RANGE_COLUMNS: Columns = {
    "from>": lambda row: str(row["from_seq"]),
    "to>": lambda row: str(row["to_seq"]),
    "seqs>": lambda row: count(row["to_seq"] - row["from_seq"] + 1),
    "state": lambda row: _range_state(row),
}


def _range_state(row: Mapping[str, Any]) -> Cell:
    numbers = [f"{row[name]:,} {name}" for name in ("live", "deleted", "lost") if row.get(name)]
    if row["state"] not in KEPT_STATES:
        return Styled(f"lost ({row['state']})", "red")
    return Styled(", ".join(numbers) or row["state"], KEPT_STATES[row["state"]])


def _lost_texts(ranges: list[dict[str, Any]]) -> list[str]:
    """Return lost ranges of a timeline as text, the exact ones first."""
    exact = [row for row in ranges if row["state"] not in KEPT_STATES]
    return [f"{row['from_seq']} to {row['to_seq']} ({row['state']})" for row in exact] + [
        f"{row['lost']:,} of {row['from_seq']} to {row['to_seq']}" for row in ranges if row.get("lost")
    ]


def _state_rows(state: Mapping[str, Any], lost: list[str]) -> Iterator[tuple[str, Cell]]:
    now_ms = SystemClock().now_ms()
    yield "topic", Styled(state["topic"], "bold")
    yield "type", f"{state['type']}, {state['config']['durability']}"
    yield "records", f"{count(state['count'])} ({size(state['bytes'])})"
    if state["count"]:
        yield "seqs", f"{state['earliest_seq']} to {state['head_seq']}"
    else:
        yield "next seq", str(state["next_seq"])
    if lost:
        more = f", and {len(lost) - LOST_SHOWN} more ranges: see --ranges" if len(lost) > LOST_SHOWN else ""
        yield "lost", Styled(f"seqs {', '.join(lost[:LOST_SHOWN])}{more}", "red")
    for name in ("last_write_ts", "last_read_ts"):
        ms = state[name]
        age = "never" if ms is None else f"{moment(ms)} ({duration(max(now_ms - ms, 0))} ago)"
        yield name.removesuffix("_ts").replace("_", " "), age
    yield "priority", str(state["effective_priority"])
    for name, value in (state.get("queue") or {}).items():
        yield name.replace("_", " "), Styled(str(value), "red") if "error" in name else f"{value:,}"
    for name, value in (state.get("archive") or {}).items():
        yield f"archive {name}", f"{value:,}"
    limits = [f"{name} {text}" for name, text in _config_rows(state["config"]) if name in LIMITS and text != "off"]
    yield "limits", ", ".join(limits) or "none: every record is kept"
    yield "epoch", str(state["epoch"])


# --- rm


def _rm(args: Args, topic: str | None = None) -> Request:
    return delete(topic_path(topic or args.topics[0], if_empty=args.if_empty or None))


@Command(
    "rm",
    options=(
        option("TOPIC…", "topics to remove", dest="topics", completes="topics"),
        option("--if-empty", "refuse a topic that has records"),
    ),
    asks=True,
    request=_rm,
    details="Asks first. To delete only some records, use `topics delete`.",
    examples="  topics rm orders\n  topics rm old-1 old-2 --yes\n",
)
def rm(call: Call) -> int:
    if not call.args.yes:
        for topic in call.args.topics:
            found = call.server.json(get(topic_path(topic, touch=False)))
            call.screen.note(f"{topic}: {counted(found['count'], 'record')} ({size(found['bytes'])})")
        them = "it" if len(call.args.topics) == 1 else "them"
        confirm(f"remove {', '.join(call.args.topics)} and everything in {them}?")
    status = EXIT_DONE
    for topic in call.args.topics:
        answer = call.server.json(_rm(call.args, topic))
        if not answer["deleted"]:
            status = EXIT_NOT_FOUND
        routers = f", with {counted(len(answer['routers_removed']), 'router')}" if answer["routers_removed"] else ""
        call.screen.result(answer, f"removed {topic}{routers}" if answer["deleted"] else f"{topic} does not exist")
    return status


# --- delete


def _delete(args: Args, *, dry_run: bool = False) -> Request:
    seqs = [seq for part in args.seq for seq in part] or None
    body = given(match=tag_match(args.tag), before_seq=args.before, seqs=seqs)
    if seqs and len(body) > 1:
        raise usage("--seq cannot be combined with --tag or --before", "delete in two commands, one for each condition")
    if not body:
        raise usage("name the records: --tag, --before or --seq", "`topics rm` removes a whole topic")
    dry = {"dry_run": True} if args.dry_run or dry_run else {}
    return post(topic_path(args.topic, "delete"), body | dry)


@Command(
    "delete",
    options=(
        TOPIC,
        option("--tag TAG", "records with this tag; a trailing * matches the beginning"),
        option("--before SEQ", "records with a seq below this one"),
        option("--seq SEQ", "one record, or a range such as 7-9", type=parse_seqs, action="append", default=[]),
        option("--dry-run", "count the records, and delete none"),
    ),
    asks=True,
    request=_delete,
    details="Shows the number of records and asks first. Readers see no gap where records were deleted.",
    examples="""\
  topics delete chat --tag 'bob:*'
  topics delete orders --before 1000 --yes
  topics delete orders --seq 7 --seq 20-29
""",
)
def delete_records(call: Call) -> None:
    if not call.args.yes and not call.args.dry_run:
        found = call.server.json(_delete(call.args, dry_run=True))["deleted"]
        if not found:
            call.screen.note("no record matches")
            return
        confirm(f"delete {counted(found, 'record')} of {call.args.topic}?")
    answer = call.server.json(_delete(call.args))
    verb = "would delete" if call.args.dry_run else "deleted"
    # A dry run deletes nothing, so its answer still counts the records that match.
    left = answer["count"] - (answer["deleted"] if call.args.dry_run else 0)
    call.screen.result(answer, f"{verb} {counted(answer['deleted'], 'record')}; {counted(left, 'record')} left")


def register(subparsers: Subparsers) -> None:
    for command in (ls, create, config, state, rm, delete_records):
        command.register(subparsers)
