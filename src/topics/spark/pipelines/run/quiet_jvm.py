"""Start a JVM without its messages: standard error goes to a temporary file, and is shown only if the start fails.

The handler of Ctrl-C is restored: pyspark would cancel jobs inside the signal handler, over a connection on which
another answer is being read, and break it. The JVM ignores SIGTERM: systemd and `timeout` send it to all processes of a
job, and without the JVM the driver could not stop cleanly. The JVM still ends with the driver, because it reads from a
pipe that the driver holds open.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from topics.spark.failures import Failed

SHOWN_LINES = 15
_starting = threading.local()


def _ignore_sigterm() -> None:
    """Ignore SIGTERM in a process that the starting thread has just forked. The setting survives exec."""
    if (pids := getattr(_starting, "pids", None)) is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(pids, b"%d\n" % os.getpid())


os.register_at_fork(after_in_child=_ignore_sigterm)


@contextmanager
def _ignoring_sigterm() -> Iterator[None]:
    """Start processes in this context so that they ignore SIGTERM: a JVM must outlive the pipeline that stops it.

    On Ctrl-C, kill a JVM that was started in the context and that pyspark cannot stop, because it does not know it yet.
    """
    started, _starting.pids = os.pipe()
    try:
        yield
    except KeyboardInterrupt:
        os.set_blocking(started, False)
        _kill_unknown(started)
        raise
    finally:
        os.close(_starting.pids)
        os.close(started)
        _starting.pids = None


def _kill_unknown(started: int) -> None:
    """Kill a JVM whose start was interrupted: the file for its port is removed, so it would never end."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:  # pyspark knows the JVM, which ends with this process
        return
    with suppress(BlockingIOError, ChildProcessError):
        for pid in os.read(started, 4096).split():
            if os.waitpid(int(pid), os.WNOHANG) == (0, 0):
                os.kill(int(pid), signal.SIGKILL)


@contextmanager
def quiet_start() -> Iterator[None]:
    """Send the standard error of processes started inside to an unnamed file; this process gets its own back.

    Spark reports every failure as an exception, so only messages of the JVM about itself are lost.
    """
    is_main = threading.current_thread() is threading.main_thread()
    on_interrupt = signal.getsignal(signal.SIGINT)
    sys.stderr.flush()
    own_stderr = os.dup(2)
    with tempfile.TemporaryFile() as aside:
        os.dup2(aside.fileno(), 2)
        try:
            with _ignoring_sigterm():
                yield
        except Exception as error:
            aside.seek(0)
            output = aside.read().decode(errors="replace").splitlines()[-SHOWN_LINES:]
            raise Failed("\n  ".join(["Spark did not start:", *output, str(error)])) from error
        finally:
            os.dup2(own_stderr, 2)
            os.close(own_stderr)
            if is_main:
                signal.signal(signal.SIGINT, on_interrupt)
