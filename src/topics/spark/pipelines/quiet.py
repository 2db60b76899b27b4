"""Starting a JVM without its greetings: what it says on standard error is kept aside, and shown only when it fails."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from topics.spark.pipelines.failures import Failed

SHOWN_LINES = 15


@contextmanager
def quiet_start() -> Iterator[None]:
    """Processes started in here write their standard error to a file that has no name; ours goes on as it was.

    Spark tells this process of every failure by an exception, so what is lost is what Java says about itself.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except Exception as error:
            aside.seek(0)
            said = aside.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
            raise Failed("\n  ".join(["Spark did not start:", *said, str(error)])) from error
        finally:
            os.dup2(ours, 2)
            os.close(ours)
