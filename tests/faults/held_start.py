"""`topics serve` whose start stops where a test wants to look at it.

HOLD_AT in the environment is the share of the log that recovery replays before it waits for the file HOLD_UNTIL.
REPLAY_PER_TURN is how many records of `memory` topics come back in each turn of the loop without being asked for.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from topics.cli import serve
from topics.cli.main import build_parser
from topics.engine import backlog, recovery

recover = recovery.recover


def held(*args: Any, progress: recovery.Progress, **options: Any) -> recovery.Recovered:
    hold_at, until = float(os.environ.get("HOLD_AT", "2")), Path(os.environ.get("HOLD_UNTIL", ""))

    def advance(share: float) -> None:
        progress(share)
        while share >= hold_at and not until.exists():
            time.sleep(0.001)
            progress(share)

    return recover(*args, progress=advance, **options)


if __name__ == "__main__":
    recovery.recover = held
    backlog.PER_TURN = int(os.environ.get("REPLAY_PER_TURN", backlog.PER_TURN))
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
