"""Jobs of an answer as encoded JSON, so that their data is printed as it was written."""

from __future__ import annotations

import json

import msgspec
from msgspec import Raw


def raw_jobs(body: bytes, member: str) -> list[bytes]:
    """Return the jobs of an answer. The decoder refuses half a surrogate pair; `json` keeps it."""
    try:
        return [
            bytes(job)
            for job in msgspec.json.decode(msgspec.json.decode(body, type=dict[str, Raw])[member], type=list[Raw])
        ]
    except msgspec.DecodeError:
        return [json.dumps(job).encode() for job in json.loads(body)[member]]
