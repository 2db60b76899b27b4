"""Show new records of many topics as they come."""

import asyncio
import os

from topics.client import AsyncTopics, Gap, Start


async def main() -> None:
    async with AsyncTopics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
        print("watching", flush=True)
        async for item in topics.watch({"chat-*": Start()}):
            print(item.topic, item.reason if isinstance(item, Gap) else item.data, flush=True)


asyncio.run(main())
