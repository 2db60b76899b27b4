"""Start a local Spark faster, with two caches below the user's cache folder.

    classes    The JVM loads about 20,000 classes. Java can keep them in an archive for the next start (class-data
               sharing). The first JVM writes the archive when it ends. It fits one Spark home: Java compares the
               paths and times of the jars.
    home       Spark gives its workers a zip of PySpark, which has no bytecode, so each start compiles it again. A Spark
               home without the zip makes them import the installed package.

A cache that cannot be written or does not match is left out: the start is slower, and works as before.
"""

from __future__ import annotations

import os
import shutil
import site
import time
import zlib
from contextlib import suppress
from pathlib import Path

import pyspark

HEADER_BYTES = 4
ABANDONED_S = 300.0  # a JVM writes for seconds
OPTIONS = "spark.driver.extraJavaOptions"


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "topics" / "spark"


def slim_home(cache: Path) -> str | None:
    """Return a Spark home without the zip of PySpark, or None if workers could not import the installed package."""
    installed = Path(pyspark.__file__).parent
    if str(installed.parent) not in {*site.getsitepackages(), site.getusersitepackages()}:
        return None
    home = cache / f"home-{_key(str(installed), pyspark.__version__)}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        for entry in installed.iterdir():
            if entry.is_dir() and entry.name in ("bin", "conf", "jars", "sbin") and not (home / entry.name).exists():
                with suppress(FileExistsError):  # another process is doing the same
                    (home / entry.name).symlink_to(entry)
    except OSError:
        return None
    return str(home) if (home / "jars").is_dir() else None


def class_archive(cache: Path, home: str) -> str | None:
    """Return the Java options that use the archive of classes for a Spark home, or that write it when the JVM ends."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if os.environ.get("JAVA_HOME") else shutil.which("java")
    try:
        found = Path(java or "").resolve(strict=True)
        stat = found.stat()
        cache.mkdir(parents=True, exist_ok=True)
        key = _key(str(found), str(stat.st_mtime_ns), pyspark.__version__, home, _time_of_jars(home))
        archive = cache / f"classes-{key}.jsa"
        _adopt(archive)
    except OSError:
        return None
    if archive.exists():
        return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off"
    return f"-XX:ArchiveClassesAtExit={archive}.{os.getpid()} -Xlog:cds*=off"


def _time_of_jars(home: str) -> str:
    try:
        return str((Path(home) / "jars").stat().st_mtime_ns)
    except FileNotFoundError:
        return ""


def _adopt(archive: Path) -> None:
    """Rename an archive that an earlier process has written, once that process has ended.

    Java writes the header last, so an archive that begins with zeros is not complete.
    """
    for written in archive.parent.glob(f"{archive.name}.*"):
        pid = written.name.rpartition(".")[2]
        if pid.isdigit() and not _is_running(int(pid)):
            with written.open("rb") as file:
                is_whole = any(file.read(HEADER_BYTES))
            if is_whole:
                written.replace(archive)
            elif time.time() - written.stat().st_mtime > ABANDONED_S:
                written.unlink()


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _key(*parts: str) -> str:
    return f"{zlib.crc32(chr(0).join(parts).encode()):08x}"


def prepare(config: dict[str, str]) -> dict[str, str]:
    """Set the Spark home for a local start, and return the settings with the options for Java added."""
    cache = cache_folder()
    if "SPARK_HOME" not in os.environ and (home := slim_home(cache)) is not None:
        os.environ["SPARK_HOME"] = home
    options = class_archive(cache, os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent))
    given = config.get(OPTIONS, "")
    if options is None or "SharedArchiveFile" in given or "ArchiveClassesAtExit" in given:
        return config
    return {**config, OPTIONS: f"{given} {options}".strip()}
