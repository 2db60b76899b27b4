"""`topics schema …`: show, set and infer the schema of a topic, and write its types."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from topics.cli.command import Call, Command, group
from topics.cli.connect import get, post, put
from topics.cli.data import schema_text
from topics.cli.options import TOPIC, option
from topics.cli.output.failures import usage
from topics.cli.output.screen import pretty_json
from topics.client.call import given, topic_path

SAMPLE = 1000
LANGUAGES = {"ts": "ts", "typescript": "ts", "py": "python", "python": "python"}
VERSION = option("--version N", "a version; the last one if it is left out", type=int)
MODES, COMPATIBILITIES = ("reject", "warn", "off"), ("backward", "forward", "full", "none")


@Command(
    "show", "print the schema of a topic", (TOPIC, VERSION),
    request=lambda args: get(topic_path(args.topic, "schema", version=args.version)),
    examples="  topics schema show orders\n  topics schema show orders --version 1 --json | jq .schema\n",
)  # fmt: skip
def show(call: Call) -> None:
    found = call.ask()
    use = f"mode {found['schema_mode']}" if found["active"] else "not in use"
    head = f"version {found['version']} of {found['versions']}, {use}, compatibility {found['compatibility']}"
    call.screen.result(found, f"{head}\n{pretty_json(found['schema'])}")


def _schema_of(path: str | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except (OSError, ValueError) as error:
        raise usage(
            f"the schema cannot be read: {error}", "pass a file with a JSON Schema, or - for standard input"
        ) from None


@Command(
    "set", "set the schema of a topic, or how it is used",
    (
        TOPIC,
        option("[FILE]", "a file with a JSON Schema; - is standard input", dest="file"),
        option("--mode MODE", "reject records that do not match, only warn, or off", choices=MODES),
        option("--compatibility WHAT", "which changes are allowed", choices=COMPATIBILITIES),
        option("--force", "set a schema that is not compatible with the last one"),
    ),
    request=lambda args: put(
        topic_path(args.topic),
        given(
            schema=_schema_of(args.file), schema_mode=args.mode, compatibility=args.compatibility,
            force=args.force or None,
        ),
    ),
    examples="  topics schema set orders orders.schema.json\n  topics schema set orders --mode warn\n",
)  # fmt: skip
def set_schema(call: Call) -> None:
    found = call.ask()
    config = found["config"]
    text = f"{call.args.topic}: version {len(config['schema_versions'])}, mode {config['schema_mode']}"
    call.screen.result(found, text if config["schema"] is not None else f"{call.args.topic} has no schema")


remove = Command(
    "rm", "check the records of a topic no more; its versions are kept", (TOPIC,),
    request=lambda args: put(topic_path(args.topic), {"schema": None}), examples="  topics schema rm orders\n",
    says=lambda args, answer: f"{args.topic}: records are not checked any more",
)  # fmt: skip


@Command(
    "types", "print the types of a schema in TypeScript or Python",
    (
        TOPIC, VERSION,
        option("--lang LANGUAGE", "ts or python [%(default)s]", choices=tuple(LANGUAGES), default="ts"),
        option("--name NAME", "name of the type; made of the name of the topic if it is left out"),
    ),
    request=lambda args: get(topic_path(args.topic, "schema", version=args.version)),
    examples="  topics schema types orders > orders.ts\n  topics schema types orders --lang python > orders.py\n",
)  # fmt: skip
def types(call: Call) -> None:
    name = call.args.name or schema_text.type_name(call.args.topic)
    call.screen.line(schema_text.types(call.ask()["schema"], name, LANGUAGES[call.args.lang]).rstrip("\n"))


@Command(
    "infer", "print a schema that the last records of a topic match",
    (TOPIC, option("--sample N", f"how many of the last records [{SAMPLE}]", default=SAMPLE)),
    request=lambda args: get(topic_path(args.topic, touch=False)),
    examples="  topics schema infer orders > orders.schema.json\n  topics schema infer orders --sample 100\n",
)  # fmt: skip
def infer(call: Call) -> None:
    head, values = call.ask()["head_seq"], list[Any]()
    from_seq = max(head - call.args.sample, 0)
    while from_seq < head:
        body = {"from_seq": from_seq, "limit": SAMPLE, "include_meta": False}
        page = call.server.json(post(topic_path(call.args.topic, "diff"), body))
        values += [record["data"] for record in page["records"]]
        from_seq = max(page["next_from_seq"], from_seq + 1)
    if not values:
        raise usage(f"topic {call.args.topic} has no records to look at")
    call.screen.line(pretty_json(schema_text.infer(values)))


register = group("schema", show, set_schema, remove, types, infer)
