"""The configuration fields of a topic as options: `ttl_ms` is `--ttl 7d`, `cap_bytes` is `--cap-bytes 10MiB`.

One row per field of the configuration. `--set FIELD=JSON` takes any field, also one that this version does not know.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from topics.cli.options import option
from topics.cli.output.units import count, duration, parse_count, parse_duration, parse_size, size


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is not true or false")
    return text == "true"


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rate(text: str) -> Any:
    """Return `10` as a rate of 10 jobs in a second."""
    found = _json_or_text(text)
    return {"per_s": found} if type(found) in (int, float) else found


class Field(NamedTuple):
    """One field: its option, how its value is read and printed, and what it means."""

    name: str
    flag: str
    metavar: str
    parse: Callable[[str], Any]
    help: str
    choices: tuple[str, ...] = ()
    show: Callable[[Any], str] = str

    @property
    def is_for_queues(self) -> bool:
        return self.help.startswith("queues:")

    def shown(self, value: Any) -> str:
        """Return a value of the configuration for a person."""
        if value is None or (value == 0 and self.show is not str and self.name != "claim_jitter_ms"):
            return "off"
        if isinstance(value, bool):
            return "yes" if value else "no"
        return self.show(value)


FIELDS = (
    Field("type", "--type", "TYPE", str, "log, or queue for jobs; cannot change later", ("log", "queue")),
    Field("durability", "--durability", "CLASS", str,
          "when a write is acknowledged: ephemeral, memory, disk, fsync [disk]",
          ("ephemeral", "memory", "disk", "fsync", "replicated")),
    Field("ttl_ms", "--ttl", "DURATION", parse_duration, "records older than this expire; 0 is never", show=duration),
    Field("cap_records", "--cap-records", "N", parse_count, "most records; 0 is no limit", show=count),
    Field("cap_bytes", "--cap-bytes", "SIZE", parse_size, "most bytes; 0 is no limit", show=size),
    Field("discard", "--discard", "WHAT", str, "at a cap: old evicts the oldest, reject refuses the write [old]",
          ("old", "reject")),
    Field("priority", "--priority", "N", _integer, "order of service under pressure, -1000 to 1000"),
    Field("auto_priority", "--auto-priority", "BOOL", _boolean, "serve topics first that were read recently [true]"),
    Field("auto_create", "--auto-create", "BOOL", _boolean, "let the server create the dead-letter topic [true]"),
    Field("idempotency_window_ms", "--idempotency-window", "DURATION", parse_duration,
          "how long a key of `append --key` is remembered [2m]", show=duration),
    Field("dedupe_node", "--dedupe-node", "BOOL", _boolean, "let readers skip their own records [true]"),
    Field("lease_ms", "--lease", "DURATION", parse_duration, "queues: how long a worker holds a job [30s]",
          show=duration),
    Field("claim_jitter_ms", "--claim-jitter", "DURATION", parse_duration,
          "queues: collect claims for this long and share the jobs", show=duration),
    Field("max_deliveries", "--max-deliveries", "N", parse_count,
          "queues: after this many deliveries, move the job to the dead letters", show=count),
    Field("dead_letter", "--dead-letter", "TOPIC", str, "queues: topic for the dead letters"),
    Field("leases_durable", "--leases-durable", "BOOL", _boolean, "queues: leases survive a restart [false]"),
    Field("retry", "--retry", "JSON", _json_or_text,
          "queues: delay of failed jobs: null, or '{\"min_ms\": 1000, \"max_ms\": 300000, \"factor\": 2}'",
          show=json.dumps),
    Field("max_in_flight", "--max-in-flight", "N", parse_count, "queues: most jobs held at a time", show=count),
    Field("max_in_flight_per_key", "--max-in-flight-per-key", "N", parse_count,
          "queues: most jobs of one key held at a time [1]", show=count),
    Field("rate", "--rate", "RATE", _rate,
          "queues: most deliveries in a second: 10, or null, or '{\"per_s\": 10, \"burst\": 5}'", show=json.dumps),
    Field("rate_per_key", "--rate-per-key", "RATE", _rate, "queues: the same for each key", show=json.dumps),
    Field("paused", "--paused", "BOOL", _boolean, "queues: give out no jobs [false]"),
)  # fmt: skip
BY_NAME = {field.name: field for field in FIELDS}


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("configuration")
    for field in FIELDS:
        # Without the option there is no attribute, because `--rate null` is a value, too.
        row: dict[str, Any] = {"type": field.parse, "choices": field.choices or None, "default": argparse.SUPPRESS}
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
