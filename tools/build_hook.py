"""What a build adds to the sources: the sync client, and the version with the commit it was built from.

`pyproject.toml` names this file: hatchling calls `version` for the metadata, and `CustomBuildHook` before it collects
files, also for an editable install. The version is that of the next release, with the commit unless it is the release.
It is written into the package, so that a server can name the build that wrote a data directory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
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
    """Generates the sync client, and adds `topics/_build.py` to wheels. An editable install has no `_build.py`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        subprocess.run([sys.executable, str(ROOT / "tools" / "unasync.py")], check=True)
        if self.target_name != "wheel" or version == "editable":
            return
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
            file.write(f'"""Written by the build."""\n\nVERSION = "{self.metadata.version}"\n')
        build_data["force_include"][file.name] = "topics/_build.py"
