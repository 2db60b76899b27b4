"""Starting a JVM without its greetings: what it says on standard error is kept aside, and shown only when it fails.

Ctrl-C stays ours: pyspark would cancel jobs from within the signal, over the connection on which the answer to
something else is being read, and break it. SIGTERM, too: systemd and `timeout` send it to all processes of a job, and a
JVM that dies of it leaves the driver, which is about to end in order, with nobody to talk to. The JVM ends with the
driver all the same: it reads from a pipe whose other end is here.
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
_starting = threading.local()


def _ignore_sigterm() -> None:
    """In a process that was just forked by the thread that starts a JVM; what is ignored stays so through exec."""
    if getattr(_starting, "jvm", False):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


os.register_at_fork(after_in_child=_ignore_sigterm)


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
        _starting.jvm = True
        try:
            yield
        except Exception as error:
            aside.seek(0)
            said = aside.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
            raise Failed("\n  ".join(["Spark did not start:", *said, str(error)])) from error
        finally:
            _starting.jvm = False
            os.dup2(ours, 2)
            os.close(ours)
            if is_main:
                signal.signal(signal.SIGINT, on_interrupt)
