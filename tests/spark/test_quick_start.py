"""The caches of a local start: what they hold, and that a start without them is possible."""

import os
import subprocess
from pathlib import Path

import pytest

from topics.spark import quick_start


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path / "cache"


def ended_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_spark_home_has_jars_and_no_zip_of_pyspark(cache: Path):
    home = quick_start.slim_home(cache)
    assert home is not None
    assert sorted(entry.name for entry in Path(home).iterdir()) == ["bin", "jars", "sbin"]
    assert (Path(home) / "bin" / "spark-submit").exists()
    assert quick_start.slim_home(cache) == home


def test_first_start_writes_the_archive_and_later_ones_use_it(cache: Path):
    first = quick_start.class_archive(cache, "/spark")
    assert first is not None
    assert f".jsa.{os.getpid()} " in first
    archive = Path(first.split()[0].partition("=")[2]).with_suffix("")
    running, ended = Path(f"{archive}.{os.getpid()}"), Path(f"{archive}.{ended_pid()}")
    running.write_bytes(b"half")
    assert quick_start.class_archive(cache, "/spark") == first, "an archive that is being written is not used"
    ended.write_bytes(bytes(100))
    assert quick_start.class_archive(cache, "/spark") == first, "an archive without its header is not used"
    os.utime(ended, (0, 0))
    assert quick_start.class_archive(cache, "/spark") == first
    assert not ended.exists(), "an abandoned archive is removed"
    ended.write_bytes(b"whole")
    assert quick_start.class_archive(cache, "/spark") == f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off"
    assert archive.read_bytes() == b"whole"


def test_each_spark_home_has_its_own_archive(cache: Path, tmp_path: Path):
    """Java refuses an archive of classes from other jars, and the start would stay slow."""
    homes = [str(tmp_path / name) for name in ("one", "other")]
    for home in homes:
        (Path(home) / "jars").mkdir(parents=True)
    first, other = (quick_start.class_archive(cache, home) for home in homes)
    assert first != other
    os.utime(Path(homes[0]) / "jars", (1, 1))
    assert quick_start.class_archive(cache, homes[0]) != first, "the package was installed again"


def test_start_without_a_cache_folder_changes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch):
    cache.write_text("a file where the folder should be")
    monkeypatch.setattr(quick_start, "cache_folder", lambda: cache)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert quick_start.prepare({"spark.ui.enabled": "false"}) == {"spark.ui.enabled": "false"}
    assert "SPARK_HOME" not in os.environ


def test_own_java_options_stay(cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(quick_start, "cache_folder", lambda: cache)
    monkeypatch.setenv("SPARK_HOME", "/mine")
    options = quick_start.prepare({quick_start.OPTIONS: "-Xss4m"})[quick_start.OPTIONS]
    assert options.startswith("-Xss4m -XX:ArchiveClassesAtExit=")
    given = {quick_start.OPTIONS: "-XX:SharedArchiveFile=/own.jsa"}
    assert quick_start.prepare(given) == given
    assert os.environ["SPARK_HOME"] == "/mine"
