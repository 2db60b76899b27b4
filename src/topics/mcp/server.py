"""The server of the protocol, by the official SDK: the tools, topics as resources, and a prompt."""

from __future__ import annotations

from functools import wraps
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from topics import __version__
from topics.client.errors import TopicsError
from topics.mcp.tools import Tools, bounded

INSTRUCTIONS = """\
topics is an event engine: topics hold JSON records in order, each with a seq. A topic of type queue hands out its
records as jobs. Every answer is short and has `to_continue` if there is more. A tombstone in an answer means that
records were lost. Names beyond the rights of the key are refused."""
INVESTIGATE = """\
The record with seq {seq} of the dead-letter topic {topic} is a job that failed too often. Find out why, and say what to
do.
1. Read it: read_records of {topic} with from_seq={before} and limit=1. Its meta has its queue, deliveries and reasons.
2. Describe the queue that it came from, and list its jobs: do others fail with the same reason?
3. Read its neighbours in {topic}: when did it begin, and what do they have in common?
4. Say in three sentences: the cause, whether a redrive can succeed now, and what must change before.
Do not redrive or delete anything unless the user asks for it."""


def build(tools: Tools, *, destructive: bool) -> MCPServer[Any]:
    server: MCPServer[Any] = MCPServer("topics", instructions=INSTRUCTIONS, version=__version__, log_level="ERROR")
    for row in tools.rows(destructive=destructive):
        hints = ToolAnnotations(
            read_only_hint=row.reads, destructive_hint=row.destroys, open_world_hint=False,
        )  # fmt: skip
        server.add_tool(_explained(getattr(tools, row.name)), name=row.name, annotations=hints, structured_output=False)

    @server.resource("topics://{topic}", name="topic", mime_type="application/json")
    async def topic_resource(topic: str) -> str:
        """A topic: its settings, with the schema of its records if it has one, and its state."""
        return bounded(await tools.topics.topic(topic))

    @server.resource("topics://", name="topics", mime_type="application/json")
    async def all_topics() -> str:
        """The topics, as list_topics returns them."""
        return await tools.list_topics()

    @server.prompt()
    def investigate_dead_letter(topic: str, seq: int) -> str:
        """Find out why a job ended in a dead-letter topic."""
        return INVESTIGATE.format(topic=topic, seq=seq, before=int(seq) - 1)

    return server


def _explained(tool: Any) -> Any:
    """Return the tool with errors that a model can act on: the code, the message and what the server says about it."""

    @wraps(tool)
    async def call(*args: Any, **fields: Any) -> str:
        try:
            answer: str = await tool(*args, **fields)
            return answer
        except TopicsError as error:
            detail = f" {bounded(error.detail)}" if error.detail else ""
            raise ToolError(f"{error.code}: {error}{detail}") from error
        except ValueError as error:
            raise ToolError(str(error)) from error

    return call
