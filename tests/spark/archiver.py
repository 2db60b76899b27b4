"""The pipeline `archive` in a process of its own, for tests that kill it.

    python -m tests.spark.archiver <url> <lake> <topic> <round bytes> [trim]

Follows without a pause, in small rounds, and merges early: whenever it is killed, it is in the middle of something.
"""

from __future__ import annotations

import sys

from tests.spark.driver import start
from topics.spark.pipelines.archive.driver import archive


def main() -> None:
    url, lake, topic, round_bytes, *more = sys.argv[1:]
    archive(
        url=url, lake=lake, topics=[topic], follow=True, every_s=0, merge_files=3, round_bytes=int(round_bytes),
        trim="trim" in more, spark=start("local[2]"),
    )  # fmt: skip


if __name__ == "__main__":
    main()
