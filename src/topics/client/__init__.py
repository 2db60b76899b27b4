"""Clients for Python: `AsyncTopics` and `Topics` with the same methods, and `Client`, the raw one that Spark uses.

Names are imported when they are first used, so that the async client does not load what only Spark needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from topics.client._async.client import AsyncTopics as AsyncTopics
    from topics.client._async.queues import AsyncJob as AsyncJob
    from topics.client._sync.client import Topics as Topics
    from topics.client._sync.queues import Job as Job
    from topics.client.cursors import ConsumerInfo as ConsumerInfo
    from topics.client.cursors import Cursor as Cursor
    from topics.client.cursors import FileCursor as FileCursor
    from topics.client.cursors import MemoryCursor as MemoryCursor
    from topics.client.cursors import ServerCursor as ServerCursor
    from topics.client.cursors import Start as Start
    from topics.client.errors import TopicFull as TopicFull
    from topics.client.errors import TopicNotFound as TopicNotFound
    from topics.client.errors import TopicsError as TopicsError
    from topics.client.errors import Unreachable as Unreachable
    from topics.client.items import Gap as Gap
    from topics.client.items import NewRecord as NewRecord
    from topics.client.items import Position as Position
    from topics.client.items import Record as Record
    from topics.client.raw import Client as Client

_HOMES = {
    "AsyncTopics": "_async.client",
    "AsyncJob": "_async.queues",
    "Topics": "_sync.client",
    "Job": "_sync.queues",
    "ConsumerInfo": "cursors",
    "ServerCursor": "cursors",
    "Cursor": "cursors",
    "FileCursor": "cursors",
    "MemoryCursor": "cursors",
    "TopicFull": "errors",
    "TopicNotFound": "errors",
    "TopicsError": "errors",
    "Unreachable": "errors",
    "Gap": "items",
    "NewRecord": "items",
    "Position": "items",
    "Record": "items",
    "Client": "raw",
    "Start": "cursors",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("httpx", "websockets"):
            raise
        from topics.installation import install_command

        raise ImportError(f"{name} needs {error.name}: {install_command('client')}") from error
