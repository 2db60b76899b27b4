"""Read lines from standard input and write each as a record. A retry never writes a record twice."""

import os
import sys

from topics.client import Topics

with Topics(os.environ.get("TOPICS_URL", "http://127.0.0.1:4000")) as topics:
    with topics.writer("lines", linger_ms=20) as writer:
        futures = [writer.append(line.rstrip("\n")) for line in sys.stdin]
    for future in futures:
        print("wrote", future.result())
