"""The lag of a stream: how many seqs its source has that the query has not read yet.

Spark fills `metrics` of a progress report only for sources written in Java. A Python source reports its latest offset,
and the lag is the distance from there to the end of the last batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


def lag(query: Any) -> dict[str, int] | None:
    """Return the unread seqs by topic, after the last batch of a streaming query.

    `query` is a query, its `lastProgress`, or the progress of a listener's event. With several servers the names are
    `server/topic`. Return None if there is no report yet, or if this version of Spark reports no latest offset.
    """
    progress = query.lastProgress if hasattr(query, "lastProgress") else query
    if progress is None:
        return None
    found: dict[str, int] = {}
    for source in progress["sources"]:
        latest, end = _positions(source["latestOffset"]), _positions(source["endOffset"])
        if latest is None:
            continue
        for name, (epoch, seq) in latest.items():
            read_epoch, read_seq = (end or {}).get(name, (epoch, 1))
            found[name] = max(seq - (read_seq if read_epoch == epoch else 1), 0)
    return found or None


def _positions(offset: Any) -> dict[str, tuple[int, int]] | None:
    """Return epoch and next seq by topic, or None if the offset is not one of topics."""
    try:
        decoded = msgspec.json.decode(offset) if isinstance(offset, str | bytes) else offset
        return dict(_flat(decoded["to"], ""))
    except (msgspec.MsgspecError, KeyError, TypeError, AttributeError):
        return None


def _flat(found: dict[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for name, value in found.items():
        if isinstance(value.get("seq"), int) and isinstance(value.get("epoch"), int):
            yield prefix + name, (value["epoch"], value["seq"])
        else:
            yield from _flat(value, f"{name}/")
