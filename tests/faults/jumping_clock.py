"""`topics serve` on a machine whose wall clock is set while it runs: the file CLOCK has how many ms it is ahead."""

import os
import sys
import time
from pathlib import Path

from topics.cli.options import build_parser
from topics.cli.servers import serve

if __name__ == "__main__":
    wall_ns, file = time.time_ns, Path(os.environ["CLOCK"])
    time.time_ns = lambda: wall_ns() + int(file.read_text()) * 1_000_000
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
