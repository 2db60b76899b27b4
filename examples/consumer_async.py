"""Print the records of a topic, from where the program stopped last time, and report what was lost."""

import asyncio
import os

from topics.client import AsyncTopics, FileCursor, Gap


async def main() -> None:
    async with AsyncTopics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
        async for item in topics.follow("lines", cursor=FileCursor("lines.cursor"), wait_for_topic=True):
            if isinstance(item, Gap):
                print(f"lost {item.first_seq} to {item.last_seq}: {item.reason}", flush=True)
            else:
                print(item.seq, item.data, flush=True)


asyncio.run(main())
