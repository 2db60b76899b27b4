"""Build an OCI image from a wheel, without a container engine.

    python -m tools.image.build dist/*.whl dist/image --base python     # python: an OCI layout of python:3.12-slim
    python -m tools.image.build dist/*.whl dist/image                   # on the Python of this machine

`--base` is a directory that `skopeo copy docker://python:3.12-slim oci:python` writes. Without it, the base is made
from the Python of this machine. The packages are those of the target: `--architecture arm64` builds for that machine on
any other one. `skopeo copy oci:dist/image docker-daemon:topics:latest` loads the image. The settings are those of
deploy/Dockerfile; a test compares them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.image import base as local_base
from tools.image.layout import Entry, Image, Layer, Layout, read

ROOT = Path(__file__).parents[2]
PLACE = "opt/topics"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
USER = 10001
HEALTH = ["CMD", "python3", f"/{PLACE}/healthcheck.py"]
SECOND_NS = 1_000_000_000
ENV = {
    "PYTHONPATH": f"/{PLACE}/lib",
    "TOPICS_HOST": "0.0.0.0",
    "TOPICS_PORT": "4000",
    "TOPICS_DATA_DIR": "/var/lib/topics",
    "TOPICS_API_KEYS_FILE": "/run/secrets/topics-api-keys",
    "TOPICS_LOG_FORMAT": "json",
}
COMMAND = "#!/usr/bin/env python3\nimport sys\n\nfrom topics.__main__ import main\n\nsys.exit(main())\n"


def build(wheel: Path, target: Path, base: Path | None, architecture: str) -> str:
    """Write the image into a directory that does not exist yet. Return the digest of its manifest."""
    epoch_s = int(os.environ.get("SOURCE_DATE_EPOCH") or wheel.stat().st_mtime)
    with tempfile.TemporaryDirectory(prefix="topics-image-") as path:
        scratch = Path(path)
        below = read(base, architecture) if base else Image(local_base.config(architecture), [])
        version = python_version(below.config)
        install(wheel, scratch / "lib", version, MACHINES[architecture])
        layout = Layout(target, epoch_s)
        if base is None:
            (scratch / "etc").mkdir()
            layers: list[Layer] = [layout.add_layer(local_base.entries(scratch / "lib", scratch / "etc"))]
        else:
            layout.add_base(base, below)
            layers = list(below.layers)
        layers.append(layout.add_layer(program_entries(scratch)))
        release = wheel.name.split("-")[1]
        created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch_s))
        labels = {
            "org.opencontainers.image.title": "topics",
            "org.opencontainers.image.version": release,
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.created": created,
        }
        return layout.finish(Image(config(below.config, labels, created), layers), release, labels)


def python_version(below: dict[str, Any]) -> tuple[int, int]:
    """Return the Python of the base, which images of Python have in a variable. Raise `ValueError` without one."""
    for variable in below["config"].get("Env", ()):
        name, _, value = variable.partition("=")
        if name == "PYTHON_VERSION":
            major, minor = value.split(".")[:2]
            return int(major), int(minor)
    raise ValueError("the base has no PYTHON_VERSION: it is not an image of Python")


def install(wheel: Path, target: Path, version: tuple[int, int], machine: str) -> None:
    """Install the wheel and what it needs for another Python or machine, from wheels only."""
    tag = f"{version[0]}{version[1]}"
    command = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"),
        *("--target", str(target), "--only-binary", ":all:", "--implementation", "cp"),
        *("--python-version", f"{version[0]}.{version[1]}", "--abi", f"cp{tag}", "--abi", "abi3", "--abi", "none"),
        *(f"--platform=manylinux_{glibc}_{machine}" for glibc in ("2_28", "2_24", "2_17")),
        *(f"--platform=manylinux2014_{machine}", "-c", str(ROOT / "constraints.txt"), f"{wheel}[client,replica]"),
    ]
    subprocess.run(command, check=True)
    shutil.rmtree(target / "bin", ignore_errors=True)  # scripts of the building Python
    if version == sys.version_info[:2]:  # the image is read-only, so its Python could not keep what it compiles
        compiler = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
        subprocess.run([*compiler, "-s", str(target), "-p", f"/{PLACE}/lib", str(target)], check=True)


def program_entries(scratch: Path) -> list[Entry]:
    """Return the files of the upper layer: the packages, the command, the health check, and the places for data."""
    library, command = scratch / "lib", scratch / "topics"
    command.write_text(COMMAND)
    found = [Entry(f"{PLACE}/lib/{path.relative_to(library)}", path) for path in library.rglob("*") if path.is_file()]
    return [
        *found,
        Entry(f"{PLACE}/bin/topics", command, mode=0o755),
        Entry(f"{PLACE}/healthcheck.py", ROOT / "deploy" / "healthcheck.py"),
        Entry("var/lib/topics", owner=USER),
    ]


def config(below: dict[str, Any], labels: dict[str, str], created: str) -> dict[str, Any]:
    """Return the configuration of the image: that of the base, with the program and its settings."""
    variables = dict(variable.split("=", 1) for variable in below["config"].get("Env", ())) | ENV
    variables["PATH"] = f"/{PLACE}/bin:{variables.get('PATH', '/usr/local/bin:/usr/bin:/bin')}"
    settings = {
        "User": f"{USER}:{USER}",
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "Entrypoint": ["python3", "-m", "topics"],
        "Cmd": ["serve"],
        "ExposedPorts": {"4000/tcp": {}},
        "Volumes": {"/var/lib/topics": {}},
        "WorkingDir": "/var/lib/topics",
        "StopSignal": "SIGTERM",
        "Labels": labels,
        # Not in the OCI specification, but Docker and Podman follow it.
        "Healthcheck": {
            "Test": HEALTH, "Interval": 10 * SECOND_NS, "Timeout": 5 * SECOND_NS, "StartPeriod": 60 * SECOND_NS
        },
    }  # fmt: skip
    return {"created": created, "architecture": below["architecture"], "os": "linux", "config": settings}


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("target", type=Path, help="the directory of the image; it must not exist")
    parser.add_argument("--base", type=Path, help="an OCI layout of an image of Python; by default this Python")
    here = next((name for name, machine in MACHINES.items() if machine == platform.machine()), "amd64")
    parser.add_argument("--architecture", choices=MACHINES, default=here)
    given = parser.parse_args(argv)
    if given.base is None and given.architecture != here:
        parser.error("an image for another machine needs --base")
    digest = build(given.wheel.resolve(), given.target, given.base, given.architecture)
    size = sum(path.stat().st_size for path in (given.target / "blobs" / "sha256").iterdir())
    print(f"{given.target}: {digest}, {size / 1e6:.0f} MB{'' if given.base else ', on the Python of this machine'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
