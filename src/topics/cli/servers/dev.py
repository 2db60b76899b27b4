"""`topics serve --dev`: a server in memory on a free port, which leaves nothing behind."""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from topics.cli.output.screen import Screen
from topics.cli.servers.settings import serve_flags
from topics.client.call import Request
from topics.client.connection import Connection
from topics.client.errors import TopicsError
from topics.config import BadSettings

READY_S = 20.0
LOOK_S = 0.02


@contextmanager
def settings_of(args: argparse.Namespace, env: Mapping[str, str]) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield the environment and the flags of a server for development. Raise `BadSettings` if they contradict.

    Announces the console once the server is ready, and opens it with `--open`.
    """
    flags = serve_flags(args)
    if "data_dir" in flags:
        raise BadSettings(["--data-dir: --dev keeps records in memory only; leave out one of the two"])
    env = {name: value for name, value in env.items() if name not in ("TOPICS_DATA_DIR", "TOPICS_PORT")}
    with tempfile.TemporaryDirectory(prefix="topics-dev-") as folder:
        port_file = flags.get("port_file") or str(Path(folder) / "port")
        merged = {"port": "0", "log_level": "warning", "port_file": port_file} | flags
        Path(port_file).unlink(missing_ok=True)
        threading.Thread(target=_announce, args=(Path(port_file), merged.get("host"), args), daemon=True).start()
        yield env, merged


def _announce(port_file: Path, host: str | None, args: argparse.Namespace) -> None:
    """Wait until the server is ready. Print the address of its console, and open it in a browser if asked to."""
    url = wait_until_ready(port_file, host or "127.0.0.1")
    if url is None:
        return
    console = f"{url}/console" if has_console(url) else None
    screen = Screen(as_json=args.json)
    if args.json:
        screen.json({"url": url, "console": console})
    else:
        screen.line(f"in another terminal: export TOPICS_URL={url}")
        if console is not None:
            screen.line(f"console: {console}")
    screen.flush()
    if args.open and console is not None:
        import webbrowser

        webbrowser.open(console)


def wait_until_ready(port_file: Path, host: str = "127.0.0.1") -> str | None:
    """Return the address of a server that writes its port to a file, or None if it does not become ready."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if port_file.exists():
            url = f"http://{host}:{port_file.read_text().strip()}"
            if _answers(url, "/v0/ready"):
                return url
        time.sleep(LOOK_S)
    return None


def has_console(url: str) -> bool:
    """Return whether the server serves the console."""
    return _answers(url, "/console")


def _answers(url: str, path: str) -> bool:
    """Return whether a GET request succeeds."""
    with Connection(url, timeout_s=READY_S) as connection:
        try:
            connection.send_once(Request("GET", path, accept="text/html, */*"))
        except TopicsError:
            return False
    return True
