"""`topics serve` on a disk that is slow to sync: each sync of the log takes up to SLOW_SYNC_MS longer.

With quick syncs, requests hardly ever arrive while a log entry waits for its sync.
"""

import os
import sys
import time
from random import Random

from topics.cli.main import main
from topics.storage.fs import File

_datasync = File.datasync
_delays = Random(1)


def _slow(file: File) -> None:
    _datasync(file)
    time.sleep(_delays.uniform(0, float(os.environ["SLOW_SYNC_MS"])) / 1000)
    if os.path.exists(os.environ["SLOW_FLAG"]):  # a fault of the schedule: the disk is very slow for a while
        time.sleep(0.5)


if __name__ == "__main__":
    File.datasync = _slow  # type: ignore[method-assign]
    sys.exit(main(["serve", *sys.argv[1:]]))
