"""`topics serve` whose log syncs wait while HOLD_SYNCS exists, and whose log writes fail while a `.full` file does."""

import errno
import os
import sys
import time
from pathlib import Path

from topics.cli.main import build_parser
from topics.cli.servers import serve

fdatasync, pwrite = os.fdatasync, os.pwrite


def held(descriptor: int) -> None:
    until = Path(os.environ["HOLD_SYNCS"])
    while until.exists():
        time.sleep(0.001)
    fdatasync(descriptor)


def refused(descriptor: int, data: bytes, at: int) -> int:
    full = Path(os.environ["HOLD_SYNCS"]).with_suffix(".full").exists()
    if full and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".wal"):
        raise OSError(errno.ENOSPC, "No space left on device")
    return pwrite(descriptor, data, at)


if __name__ == "__main__":
    os.fdatasync, os.pwrite = held, refused
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
