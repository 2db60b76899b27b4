"""`topics serve` whose recovery stops in the middle of the log until the test lets it go on.

HOLD_AT in the environment is the share of the log that is replayed by then; the file HOLD_UNTIL ends the wait.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from topics.cli import serve
from topics.cli.main import build_parser
from topics.engine import recovery

recover = recovery.recover


def held(*args: Any, progress: recovery.Progress, **options: Any) -> recovery.Recovered:
    hold_at, until = float(os.environ["HOLD_AT"]), Path(os.environ["HOLD_UNTIL"])

    def advance(share: float) -> None:
        progress(share)
        while share >= hold_at and not until.exists():
            time.sleep(0.001)
            progress(share)

    return recover(*args, progress=advance, **options)


if __name__ == "__main__":
    recovery.recover = held
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
