"""The tree of commands: one row for each, with its module. A module is imported only when its command is used.

A module has `register(subparsers)`, which adds the parsers of its commands and sets `args.execute`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import argparse

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # argparse has no public name for it
else:
    Subparsers = object  # `topics --version` does without argparse


class Row(NamedTuple):
    """One command of the first level: name, module below `topics.cli`, one line of help."""

    name: str
    module: str
    help: str


GROUPS: dict[str, tuple[Row, ...]] = {
    "Start": (
        Row("serve", "servers.serve", "run the server; --dev keeps everything in memory"),
        Row("demo", "servers.demo", "start a server with a small shop to look at"),
        Row("settings", "servers.serve", "print the settings of the server"),
    ),
    "Records": (
        Row("ls", "data.topics", "list topics with their sizes, rates, losses and lag"),
        Row("create", "data.topics", "create a topic or a queue"),
        Row("config", "data.topics", "show or change the configuration of a topic"),
        Row("schema", "data.schema", "show, set and infer the schema of a topic, and write its types"),
        Row("state", "data.topics", "show the state of a topic"),
        Row("rm", "data.topics", "remove topics with everything in them"),
        Row("append", "data.append", "append records, from arguments or from a pipe"),
        Row("read", "data.read", "read the records of a topic; -f follows it"),
        Row("get", "data.read", "print one record by its seq"),
        Row("watch", "data.read", "follow many topics at once"),
        Row("delete", "data.topics", "delete records by tag or seq"),
    ),
    "Queues, schedules, routers, consumers": (
        Row("queue", "queues.commands", "work with queues: claim, finish, return and inspect jobs"),
        Row("deliver", "queues.deliver", "send the jobs of a queue to a web address, signed (webhooks)"),
        Row("schedule", "schedules", "append a record at certain times"),
        Row("router", "routers", "copy the records of one topic into another"),
        Row("consumer", "consumers", "list, set and remove the positions of named consumers"),
    ),
    "Monitoring": (
        Row("top", "monitoring.top", "watch a server on one live screen"),
        Row("doctor", "monitoring.doctor", "check a server and this machine, and say how to fix what is wrong"),
        Row("ping", "monitoring.ping", "measure how long an append and its delivery take"),
    ),
    "Servers": (
        Row("context", "servers.context", "name servers, and choose the one that commands use"),
        Row("key", "keys", "create, list, rotate and revoke the keys of a server"),
    ),
    "Data directories": (
        Row("backup", "offline.commands", "copy a data directory, also while its server runs"),
        Row("restore", "offline.commands", "restore a backup, or a moment of a replica"),
        Row("repair", "offline.commands", "fetch damaged ranges from a backup or a replica"),
        Row("verify", "offline.commands", "check every file of a data directory, without changing it"),
    ),
    "Replicas": (
        Row("replica", "offline.replica", "list, check and prune the replica of a server, and promote a standby"),
    ),
    "Analysis": (
        Row("sql", "sql", "query topics and lakes with SQL"),
        Row("pipeline", "pipelines", "run bulk jobs over topics on Spark, or in one process"),
        Row("spark", "spark", "keep a local Spark in memory for pipelines and SQL"),
    ),
    "Agents": (Row("mcp", "mcp", "offer a server to an AI agent (Model Context Protocol)"),),
    "This command": (
        Row("completion", "completion", "print the completion script of a shell"),
        Row("version", "main", "print the version"),
    ),
}

ROWS = {row.name: row for rows in GROUPS.values() for row in rows}

# What people who know other systems type first, and the command that does it here.
ALSO_KNOWN_AS = {
    "append": "add pub publish produce producer push send write put",
    "read": "cat consume tail fetch scan diff",
    "watch": "sub subscribe follow listen",
    "ls": "list topics topic streams",
    "state": "describe info show stat",
    "config": "alter set",
    "rm": "drop remove destroy",
    "delete": "purge trim erase",
    "serve": "server start run up",
    "top": "stats monitor dashboard",
    "doctor": "status health check diagnose",
    "queue": "queues job jobs work claim worker",
    "deliver": "webhook webhooks hook hooks",
    "router": "routers route mirror",
    "schedule": "schedules cron crontab timer every",
    "consumer": "consumers group groups lag",
    "mcp": "agent agents",
    "key": "keys token tokens secret",
    "context": "contexts login profile profiles",
}
SYNONYMS = {word: name for name, words in ALSO_KNOWN_AS.items() for word in words.split()}

EXAMPLES = """\
topics create orders --cap-records 1M     topics append orders '{"sku": "V60"}' --tag order-7
topics read orders --last 10 -f           topics watch 'chat-*' orders
"""
