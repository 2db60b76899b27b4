"""The version of a build: that of the release, with the commit before it is released."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from topics import RELEASE, __version__

pytest.importorskip("hatchling")
SOURCES = Path(__file__).parents[1] / "tools"


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that computes versions, for sources in a temporary folder without a repository."""
    spec = importlib.util.spec_from_file_location("build_hook", SOURCES / "build_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("TOPICS_BUILD_COMMIT", raising=False)
    (tmp_path / "src" / "topics").mkdir(parents=True)
    (tmp_path / "src" / "topics" / "__init__.py").write_text('RELEASE = "1.2.0.dev0"  # comment\n')
    return module


def test_build_before_a_release_names_its_commit(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.version() == "1.2.0.dev0"
    monkeypatch.setenv("TOPICS_BUILD_COMMIT", "0123456789abcdef")
    assert build.version() == "1.2.0.dev0+g0123456789ab"


def test_release_and_source_distribution_have_their_own_version(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "PKG-INFO").write_text("Name: topics\nVersion: 1.2.0.dev0+gabc\n")
    assert build.version() == "1.2.0.dev0+gabc"
    (tmp_path / "PKG-INFO").unlink()
    monkeypatch.setenv("TOPICS_BUILD_COMMIT", "0123456789abcdef")
    (tmp_path / "src" / "topics" / "__init__.py").write_text('RELEASE = "1.2.0"\n')
    assert build.version() == "1.2.0"


def test_package_has_the_version_of_its_sources() -> None:
    assert __version__.partition("+")[0] == RELEASE
