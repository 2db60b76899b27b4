"""Environments with other versions of Spark, and jars of other projects. Each is made once per machine."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest

from tests.spark.processes import ROOT


def environment(versions: dict[str, str]) -> Path:
    """Return the Python of an environment with these versions, made once a machine. Skip if they cannot be had."""
    name = "topics-test-" + "-".join(f"{package}{version}" for package, version in versions.items())
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["spark"], "pytest", "hypothesis"]
    pinned = [f"{package}=={version}" for package, version in versions.items()]
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True)
    install = [str(python), "-m", "pip", "install", "--quiet", *wanted, *pinned]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        pytest.skip(f"PySpark {versions['pyspark']} cannot be installed from the configured registry: {reason}")
    ready.touch()
    return python


def jars(*artifacts: str) -> list[Path]:
    """Return the files of Maven artifacts. Skip if they cannot be had."""
    folder = Path(tempfile.gettempdir()) / f"topics-test-jars-{os.getuid()}"
    found = []
    for artifact in artifacts:
        _, name, version = artifact.split(":")
        path = folder / f"{name}-{version}.jar"
        if not path.exists():
            if shutil.which("mvn") is None:
                pytest.skip("Maven is not installed: it is needed for the jars of Delta Lake")
            fetch = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={folder}"]
            done = subprocess.run(fetch, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{artifact} cannot be fetched: {done.stdout.strip()[-200:]}")
        found.append(path)
    return found
