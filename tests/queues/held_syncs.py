"""`topics serve` whose log syncs wait while the file named in HOLD_SYNCS exists."""

import os
import sys
import time
from pathlib import Path

from topics.cli.options import build_parser
from topics.cli.servers import serve

fdatasync = os.fdatasync


def held(descriptor: int) -> None:
    until = Path(os.environ["HOLD_SYNCS"])
    while until.exists():
        time.sleep(0.001)
    fdatasync(descriptor)


if __name__ == "__main__":
    os.fdatasync = held
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
