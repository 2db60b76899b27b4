"""How this copy of topics was installed, for messages that say what to install next."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "topics-engine"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this copy: from its source tree if it came from one, else by name."""
    source, editable = _source()
    what = f"{source or DISTRIBUTION}[{extra}]"
    return f"{shlex.quote(sys.executable)} -m pip install {'-e ' if editable else ''}{shlex.quote(what)}"


def _source() -> tuple[str | None, bool]:
    """Return the directory that pip installed from, if it was one, and whether the copy is editable (PEP 610)."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None, False
    origin = json.loads(text) if text else {}
    url = urlsplit(origin.get("url", ""))
    if url.scheme != "file" or "dir_info" not in origin:
        return None, False
    return url2pathname(url.path), bool(origin["dir_info"].get("editable"))


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    try:
        return find_spec(package) is not None
    except ImportError:
        return False
