"""The install command in a message is right for the copy that prints it."""

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from topics import installation


class Installed:
    def __init__(self, origin: object) -> None:
        self._origin = origin

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._origin is None else json.dumps(self._origin)


@pytest.mark.parametrize(
    ("origin", "arguments"),
    [
        (None, ["topics-engine[spark]"]),
        ({"url": "file:///src/topics%20x", "dir_info": {"editable": True}}, ["-e", "/src/topics x[spark]"]),
        ({"url": "file:///src/topics", "dir_info": {}}, ["/src/topics[spark]"]),
        ({"url": "file:///tmp/topics_engine-1.whl", "archive_info": {}}, ["topics-engine[spark]"]),
    ],
)
def test_install_command_fits_the_origin(origin: object, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(origin))
    assert shlex.split(installation.install_command("spark")) == [sys.executable, "-m", "pip", "install", *arguments]


def test_install_command_without_metadata_names_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert installation.install_command("spark").endswith("'topics-engine[spark]'")


def test_distribution_is_named_as_in_the_project() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'name = "{installation.DISTRIBUTION}"' in project
