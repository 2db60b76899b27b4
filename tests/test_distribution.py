"""The wheel and the sdist: complete, and usable in a new environment."""

import importlib.util
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from topics import __version__

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build both artifacts, with the build backend of this environment."""
    if importlib.util.find_spec("build") is None or importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs build and hatchling, which `make install` installs")
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(target.glob("*.whl")), next(target.glob("*.tar.gz"))


def test_wheel_has_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    names = set(zipfile.ZipFile(built[0]).namelist())
    files = {
        path.relative_to(ROOT / "src").as_posix()
        for package in ("topics", "pyspark_topics")
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) > 300
    assert files - names == set()
    assert {"topics/server/assets/client.js", "topics/server/assets/client.d.ts"} <= names


def test_wheel_has_nothing_but_the_packages(built: tuple[Path, Path]) -> None:
    wheel = zipfile.ZipFile(built[0])
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    version = built[0].name.split("-")[1]
    assert version.partition("+")[0] == __version__
    assert f'VERSION = "{version}"' in wheel.read("topics/_build.py").decode()
    assert tops == {"topics", "pyspark_topics", f"topics_engine-{version}.dist-info"}


def test_sdist_has_what_a_build_needs_and_the_documentation(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "clients/js/topics.js", "docs/README.md"}
    assert wanted - names == set()


@pytest.mark.torture
@pytest.mark.parametrize("at", [0, 1], ids=["wheel", "sdist"])
def test_artifact_works_in_a_new_environment(built: tuple[Path, Path], at: int) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools/smoke.py"), str(built[at])], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf": {re.escape(__version__)}(\+g[0-9a-f]+)? works", done.stdout)


def test_changelog_has_a_section_for_the_version_or_for_what_comes() -> None:
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert first == "## Unreleased" or first.startswith(f"## {__version__} ")
