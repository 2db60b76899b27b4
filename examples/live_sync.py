"""Show new records of many topics as they come."""

import os

from topics.client import Gap, Start, Topics

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    print("watching", flush=True)
    for item in topics.watch({"chat-*": Start()}):
        print(item.topic, item.reason if isinstance(item, Gap) else item.data, flush=True)
