"""Send an e-mail for each job of the queue `emails`. SIGTERM lets running jobs finish."""

import os
from pathlib import Path

from topics.client import Job, Topics

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:

    @topics.worker("emails", concurrency=4, retry_delay_ms=lambda deliveries: 200 * deliveries)
    def send(job: Job) -> None:
        if Path("mail-server-is-down").exists():
            raise ConnectionError("the mail server is down")
        text = f"thank you for {job.data['qty']} x {job.data['sku']}"
        # This shop only pretends to send. With the key, a job that is repeated after a crash sends no second e-mail.
        topics.append("sent", {"to": job.data["email"], "text": text}, key=f"email-{job.seq}")

    topics.run()
