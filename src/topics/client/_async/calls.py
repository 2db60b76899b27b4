"""What the calls of a client share. Imports no httpx: `Client`, which has its own connection, has some of them, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, TypeVar

from topics.client.call import PAGE_ROWS, ListPage, with_query

if TYPE_CHECKING:
    from topics.client._async.transport import AsyncTransport

Page = TypeVar("Page", bound=ListPage)


class AsyncCalls:
    """Calls of one group, which share the connections of a client."""

    _http: AsyncTransport

    async def _pages(self, path: str, kind: type[Page], **query: str | None) -> AsyncIterator[Page]:
        cursor = None
        while True:
            page = await self._http.call("GET", with_query(path, page_size=PAGE_ROWS, cursor=cursor, **query), kind)
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return
