"""The caches of a local start: what they hold, and that a start without them is possible."""

import os
from pathlib import Path

import pytest

from topics.spark import jvm


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    return tmp_path / "cache"


@pytest.fixture
def home(tmp_path: Path) -> str:
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return str(tmp_path / "spark")


def test_first_start_writes_the_archive_and_later_ones_use_it(cache: Path, home: str):
    first = jvm.class_archive(cache, home)
    assert first is not None
    archive = Path(first.split()[0].partition("=")[2])
    assert archive.name.endswith(f".{os.getpid()}.jsa")
    archive.write_bytes(bytes(100))
    assert jvm.class_archive(cache, home) == first, "an archive without its header is not used"
    os.utime(archive, (0, 0))
    assert jvm.class_archive(cache, home) == first
    assert not archive.exists(), "an abandoned archive is removed"
    archive.write_bytes(b"whole")
    assert jvm.class_archive(cache, home) == f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off"


def test_each_spark_home_has_its_own_archive(cache: Path, tmp_path: Path):
    """Java refuses an archive of classes from other jars, and the start would stay slow."""
    homes = [str(tmp_path / name) for name in ("one", "other")]
    for home in homes:
        (Path(home) / "jars").mkdir(parents=True)
    first, other = (jvm.class_archive(cache, home) for home in homes)
    assert first != other
    os.utime(Path(homes[0]) / "jars", (1, 1))
    assert jvm.class_archive(cache, homes[0]) != first, "the package was installed again"


def test_start_without_a_cache_folder_changes_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch):
    cache.write_text("a file where the folder should be")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert jvm.quick_start({"spark.ui.enabled": "false"}, cache) == {"spark.ui.enabled": "false"}


def test_own_java_options_stay(cache: Path, home: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARK_HOME", home)
    options = jvm.quick_start({jvm.OPTIONS: "-Xss4m"}, cache)[jvm.OPTIONS]
    assert options.startswith("-Xss4m -XX:ArchiveClassesAtExit=")
    given = {jvm.OPTIONS: "-XX:SharedArchiveFile=/own.jsa"}
    assert jvm.quick_start(given, cache) == given
    assert os.environ["SPARK_HOME"] == home
