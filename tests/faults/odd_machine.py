"""`topics serve` on a machine with a wrong clock, a slow disk, or a disk that is full for checkpoints alone.

CLOCK_MS in the environment is the wall time that the process reads. SYNC_S is a delay before every sync of a file or a
directory; each sync appends a line with its path to the file SYNCS. While the file FULL exists, segments and snapshots
cannot be written, and a failed checkpoint is tried again sooner than usual.
"""

import errno
import os
import sys
import time

from topics.cli.options import build_parser
from topics.cli.servers import serve
from topics.engine.durable import checkpoint_retries
from topics.storage import data_layout, fs


def slow_syncs(delay_s: float, noted: str) -> None:
    def slow(sync, path_of):  # type: ignore[no-untyped-def]
        def wait(self, *arguments):  # type: ignore[no-untyped-def]
            with open(noted, "a") as file:
                file.write(f"{path_of(self, *arguments)}\n")
            time.sleep(delay_s)
            return sync(self, *arguments)

        return wait

    for name in ("sync", "datasync"):
        setattr(fs.File, name, slow(getattr(fs.File, name), lambda file: file.path))
    fs.Fs.sync_dir = slow(fs.Fs.sync_dir, lambda _, path: path)


def full_while_there(flag: str) -> None:
    write = data_layout.DataLayout.write_file

    def refuse(*arguments):  # type: ignore[no-untyped-def]
        if os.path.exists(flag):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(*arguments)

    data_layout.DataLayout.write_file = refuse
    checkpoint_retries.FIRST_RETRY_MS = 25  # times 20, because these attempts rotate the log


if __name__ == "__main__":
    if "CLOCK_MS" in os.environ:
        time.time_ns = lambda: int(os.environ["CLOCK_MS"]) * 1_000_000
    if "SYNC_S" in os.environ:
        slow_syncs(float(os.environ["SYNC_S"]), os.environ["SYNCS"])
    if "FULL" in os.environ:
        full_while_there(os.environ["FULL"])
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
