"""Print the records of a topic, from where the program stopped last time, and report what was lost."""

import os

from topics.client import FileCursor, Gap, Topics

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    for item in topics.follow("lines", cursor=FileCursor("lines.cursor"), wait_for_topic=True):
        if isinstance(item, Gap):
            print(f"lost {item.first_seq} to {item.last_seq}: {item.reason}", flush=True)
        else:
            print(item.seq, item.data, flush=True)
