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
from contextlib import contextmanager, suppress

from topics.spark.pipelines.run.failures import Failed

SHOWN_LINES = 15
_starting = threading.local()


def _ignore_sigterm() -> None:
    """In a process that was just forked by the thread that starts a JVM; what is ignored stays so through exec."""
    if (told := getattr(_starting, "told", None)) is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(told, b"%d\n" % os.getpid())


os.register_at_fork(after_in_child=_ignore_sigterm)


@contextmanager
def _deaf_to_sigterm() -> Iterator[None]:
    """For processes started in here. Whoever interrupts it leaves none behind that nobody has heard of yet."""
    heard, _starting.told = os.pipe()
    try:
        yield
    except KeyboardInterrupt:
        os.set_blocking(heard, False)
        _end_unknown(heard)
        raise
    finally:
        os.close(_starting.told)
        os.close(heard)
        _starting.told = None


def _end_unknown(heard: int) -> None:
    """A JVM whose start was cut off does not find the file in which to say where it listens, and would stay."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # it is known, and ends with this process
        return
    with suppress(BlockingIOError, ChildProcessError):
        for pid in os.read(heard, 4096).split():
            if os.waitpid(int(pid), os.WNOHANG) == (0, 0):
                os.kill(int(pid), signal.SIGKILL)


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
            with _deaf_to_sigterm():
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
