"""JSON as commands print and send it: compact, readable, and always valid UTF-8."""

from __future__ import annotations

import json
from typing import Any


def encode(value: Any) -> bytes:
    """Return a value as JSON. Half a surrogate pair, which UTF-8 cannot hold, is escaped."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
