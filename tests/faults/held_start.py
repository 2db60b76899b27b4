"""`topics serve` with a start that waits at a given point until the test continues it.

HOLD_AT in the environment is the share of the log that recovery replays before it waits for the file HOLD_UNTIL.
With HOLD_REPLAY, records of `memory` topics come back only where a request needs them.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from topics.cli.options import build_parser
from topics.cli.servers import serve
from topics.engine.durable import recovery
from topics.server.loop.storage import Storage

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
    if "HOLD_REPLAY" in os.environ:
        Storage._replay_some = lambda self: None
    sys.exit(serve.execute(build_parser().parse_args(["serve", *sys.argv[1:]])))
