"""The pipeline `archive` in a process of its own, for tests that kill it.

    python -m tests.spark.archiver <url> <lake> <topic> <round bytes> [trim] [here]

With `here`, its tasks run in its own process instead of on Spark.

Follows without a pause, in small rounds, and merges early: whenever it is killed, it is in the middle of something.
"""

from __future__ import annotations

import sys
from typing import Any

from topics.spark.pipelines.archive.driver import archive


def main() -> None:
    url, lake, topic, round_bytes, *more = sys.argv[1:]
    spark: Any = False
    if "here" not in more:
        from tests.spark.driver import start

        spark = start("local[2]")
    archive(
        url=url, lake=lake, topics=[topic], follow=True, every_s=0, merge_files=3, round_bytes=int(round_bytes),
        trim="trim" in more, spark=spark,
    )  # fmt: skip


if __name__ == "__main__":
    main()
