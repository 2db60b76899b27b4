"""A base image from this machine: its Python, shared libraries, certificates and time zones.

The layer has no shell and no package manager. It is for machines that reach no registry of images: a released image has
`python:3.12-slim` below it, which gets security updates.
"""

from __future__ import annotations

import re
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools.image.layout import Entry

# Parts of the standard library and of the time zones that a server does not need.
LEFT_OUT = re.compile(
    r"__pycache__|_test.*|_tkinter.*|config-.*|dist-packages|ensurepip|idlelib|site-packages|test|tkinter|turtledemo"
    r"|posix|right"
)
PREFIX = Path("usr/local")  # of Python in the image
ZONES = Path("/usr/share/zoneinfo")


def config(architecture: str) -> dict[str, Any]:
    """Return the configuration of an image with nothing but this Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    env = ["PATH=/usr/local/bin:/usr/bin:/bin", f"PYTHON_VERSION={version}"]
    return {"architecture": architecture, "os": "linux", "config": {"Env": env}, "history": []}


def entries(packages: Path, scratch: Path) -> list[Entry]:
    """Return the files of the base, with the libraries that the packages need and do not have themselves."""
    python = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    found = {str(PREFIX / "lib" / library.name / path.relative_to(library)): path for path in _files(library)}
    modules = [path for path in found.values() if path.suffix == ".so"]
    native = sorted(packages.rglob("*.so*"))
    needed = _libraries([python, *modules, *native])
    found |= {_name(path): path for path in needed if not path.resolve().is_relative_to(packages.resolve())}
    found |= {_name(path): path for path in (_files(ZONES) if ZONES.is_dir() else ())}
    found[str(PREFIX / "bin" / "python3")] = python
    certificates = Path(ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt")
    found[_name(certificates)] = certificates
    for name, text in {
        "etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\ntopics:x:10001:10001::/var/lib/topics:/sbin/nologin\n",
        "etc/group": "root:x:0:\ntopics:x:10001:\n",
        "etc/nsswitch.conf": "hosts: files dns\n",
    }.items():
        found[name] = scratch / Path(name).name
        found[name].write_text(text)
    return [Entry(name, path.resolve()) for name, path in found.items()] + [Entry("tmp", mode=0o1777)]


def _name(path: Path) -> str:
    return str(path).lstrip("/")


def _files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if LEFT_OUT.fullmatch(path.name):
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _libraries(binaries: Iterable[Path]) -> set[Path]:
    """Return the shared libraries that the dynamic linker loads for these binaries, where it looks for them."""
    listed = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", listed, re.MULTILINE)}
