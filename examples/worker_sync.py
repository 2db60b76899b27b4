"""Work through a queue, four jobs at a time. SIGTERM lets running jobs finish."""

import os
import time

from topics.client import Job, Topics

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    topics.put_topic("emails", type="queue", max_deliveries=3, dead_letter="emails.dead")

    @topics.worker("emails", concurrency=4, timeout_s=60)
    def send(job: Job) -> None:
        print("sending", job.data["to"], flush=True)
        time.sleep(job.data.get("seconds", 0))

    topics.run()
print("stopped")
