"""The version of a build: that of the next release, with the commit it was built from unless it is the release itself.

`pyproject.toml` names this file: hatchling calls `version` for the metadata, and `CustomBuildHook` writes the same
version into the package, so that a server can name the build that wrote a data directory. It is no part of the package.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]


def version() -> str:
    """Return the version of a build of these sources."""
    package = (ROOT / "src" / "topics" / "__init__.py").read_text()
    found = re.search(r'^RELEASE = "([^"]+)"', package, re.MULTILINE)
    if found is None:
        raise ValueError("src/topics/__init__.py has no RELEASE")
    release = found[1]
    info = ROOT / "PKG-INFO"  # an sdist has the version that it was built with
    if info.exists() and (built := re.search(r"^Version: (.+)$", info.read_text(), re.MULTILINE)):
        return built[1]
    commit = _commit() if ".dev" in release else ""
    return f"{release}+g{commit}" if commit else release


def _commit() -> str:
    """Return the commit of the sources; an empty text if it is unknown."""
    if given := os.environ.get("TOPICS_BUILD_COMMIT"):
        return given[:12]
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


class CustomBuildHook(BuildHookInterface[Any]):
    """Adds `topics/_build.py` to wheels. An editable install has none: its sources change."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(f'"""Written by the build."""\n\nVERSION = "{self.metadata.version}"\n')
        build_data["force_include"][file.name] = "topics/_build.py"
