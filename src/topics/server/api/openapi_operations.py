"""Descriptions and examples of the operations, for the OpenAPI document.

`openapi_operations.json` has one entry per operation: what it does, a request, and the answer that a server gave to it.
The entries are in an order in which a new server can answer all requests; `tests/contract/test_openapi.py` sends them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, Struct

FILE = Path(__file__).with_suffix(".json")

TAGS = {
    "topics": "Streams of records: create and configure them, and list them.",
    "records": "Append, read and delete records.",
    "consumers": "Positions of readers, by name, with their lag.",
    "watch": "New records as they arrive, over event streams and WebSockets.",
    "queues": "Topics whose records are jobs: workers lease them, and ack them when they are done.",
    "routers": "Copies of records from topic to topic.",
    "server": "Probes, metrics, this document, the console and the JavaScript client.",
}

PATH_PARAMETERS = {
    "topic": "the name of a topic",
    "router": "the name of a router",
    "consumer": "the name of a consumer",
    "wid": "`wid` of the watch session",
    "file": "the name of a file",
}


class Described(Struct, forbid_unknown_fields=True):
    """One operation. `answer` is the body of the answer with `status`; text for an answer that is no JSON."""

    description: str
    path: dict[str, str] = {}
    query: dict[str, str] = {}
    body: Any = UNSET
    status: int = 200
    answer: Any = UNSET


@lru_cache(maxsize=1)
def described() -> dict[str, Described]:
    """Return the operations by name."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, Described])
