"""Directories of real servers, for `topics verify`, `backup` and `restore`."""

import shutil
from pathlib import Path

import pytest

from tests.cli.data.data_world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def late(world: World, tmp_path: Path) -> Path:
    """Return a copy of the directory of a stopped server."""
    return shutil.copytree(world.late, tmp_path / "data")
