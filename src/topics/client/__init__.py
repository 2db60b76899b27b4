"""Clients for Python: `AsyncTopics` and `Topics` with the same methods, and `Client`, the raw one that Spark uses.

Names are imported when they are first used, so that the async client does not load what only Spark needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client._async.client import AsyncTopics
    from topics.client._async.queues import AsyncJob
    from topics.client._sync.client import Topics
    from topics.client._sync.queues import Job
    from topics.client.cursors import ConsumerInfo, Cursor, FileCursor, MemoryCursor, ServerCursor, Start
    from topics.client.errors import TopicFull, TopicNotFound, TopicsError, Unreachable
    from topics.client.items import Gap, Misfit, NewRecord, Position, Record, TypedRecord
    from topics.client.raw import Client

__all__ = [
    "AsyncJob", "AsyncTopics", "Client", "ConsumerInfo", "Cursor", "FileCursor", "Gap", "Job", "MemoryCursor",
    "Misfit", "NewRecord", "Position", "Record", "ServerCursor", "Start", "TopicFull", "TopicNotFound", "Topics",
    "TopicsError", "TypedRecord", "Unreachable",
]  # fmt: skip
_NAMES = {
    "_async.client": ("AsyncTopics",),
    "_async.queues": ("AsyncJob",),
    "_sync.client": ("Topics",),
    "_sync.queues": ("Job",),
    "cursors": ("ConsumerInfo", "Cursor", "FileCursor", "MemoryCursor", "ServerCursor", "Start"),
    "errors": ("TopicFull", "TopicNotFound", "TopicsError", "Unreachable"),
    "items": ("Gap", "Misfit", "NewRecord", "Position", "Record", "TypedRecord"),
    "raw": ("Client",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        from topics.installation import install_command

        raise ImportError(f"{name} needs {error.name}: {install_command('client')}") from error
