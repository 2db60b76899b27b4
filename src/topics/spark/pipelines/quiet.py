"""Starting a JVM without its greetings: what it says on standard error is kept aside, and shown only when it fails.

Ctrl-C stays ours: pyspark would cancel jobs from within the signal, over the connection on which the answer to
something else is being read, and break it.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from topics.spark.pipelines.failures import Failed

SHOWN_LINES = 15


@contextmanager
def quiet_start() -> Iterator[None]:
    """Processes started in here write their standard error to a file that has no name; ours goes on as it was.

    Spark tells this process of every failure by an exception, so what is lost is what Java says about itself.
    """
    is_main = threading.current_thread() is threading.main_thread()
    on_interrupt = signal.getsignal(signal.SIGINT)
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
            if is_main:
                signal.signal(signal.SIGINT, on_interrupt)
