"""The request of one append, and the records in it: from arguments, or from the lines of a pipe."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from msgspec import Raw

from topics.cli.command import Args
from topics.cli.connect.server import post
from topics.cli.output.failures import usage
from topics.cli.output.screen import json_text
from topics.client.call import Request, given, topic_path

WRITTEN = ("data", "tag", "node", "meta", "priority", "delay_ms", "deliver_at")


def write(args: Args, records: bytes, *, key: str | None) -> Request:
    """Return one write of encoded records, separated by commas, with the options that hold for all of them."""
    fields = given(node=args.node, idempotency_key=key or uuid.uuid4().hex, create=False if args.no_create else None)
    body = b'{"records":[' + records + b"]," + json_text(fields)[1:]
    return post(topic_path(args.topic, return_seqs=False), body)


def defaults(args: Args) -> dict[str, Any]:
    """Return the fields that the options give to every record."""
    return given(tag=args.tag, meta=args.meta, priority=args.priority, delay_ms=args.delay)


def as_record(text: bytes, common: dict[str, Any]) -> bytes:
    """Return a record to write for a record as the API takes it or as a reader prints it. Values keep their text."""
    from topics.model import surrogates  # which imports numpy

    try:
        found = surrogates.members(text)
    except msgspec.ValidationError:
        found = {}
    if "data" not in found:
        raise usage("with --records, every value must be an object with data", "leave out --records to append values")
    record = {name: found[name] for name in WRITTEN if name in found}
    for read, written in (("$tag", "tag"), ("$node", "node")):
        if read in found:
            record[written] = found[read]
    return encode({**common, **record})


def encode(fields: dict[str, Any]) -> bytes:
    """Return fields of a record as a JSON object."""
    texts = ((name, bytes(value) if isinstance(value, Raw) else json_text(value)) for name, value in fields.items())
    return b"{%b}" % b",".join(b'"%b":%b' % (name.encode(), text) for name, text in texts)
