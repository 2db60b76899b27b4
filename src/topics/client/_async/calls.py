"""What the calls of a client share. Imports no httpx: `Client`, which has its own connection, has some of them, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.client._async.transport import AsyncTransport


class AsyncCalls:
    """Calls of one group, which share the connections of a client."""

    _http: AsyncTransport
