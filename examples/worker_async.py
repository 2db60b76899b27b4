"""Work through a queue, four jobs at a time. SIGTERM lets running jobs finish."""

import asyncio
import os

from topics.client import AsyncJob, AsyncTopics


async def main() -> None:
    async with AsyncTopics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
        await topics.put_topic("emails", type="queue", max_deliveries=3, dead_letter="emails.dead")

        @topics.worker("emails", concurrency=4, timeout_s=60)
        async def send(job: AsyncJob) -> None:
            print("sending", job.data["to"], flush=True)
            await asyncio.sleep(job.data.get("seconds", 0))

        await topics.run()
    print("stopped")


asyncio.run(main())
