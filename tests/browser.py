"""A real browser, and a web site for it."""

import http.server
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BROWSERS = (
    *filter(None, [os.environ.get("CHROMIUM")]), "chromium", "chromium-browser", "google-chrome",
    "google-chrome-stable", "chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)  # fmt: skip
WAIT_S = 60


def find_browser() -> str | None:
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(
    find_browser() is None, reason="no browser found: install Chromium to run this test (CHROMIUM=/path/to/it helps)"
)


class Site(http.server.ThreadingHTTPServer):
    """A web site with one page at every path. `on_report` gets the body of each POST."""

    daemon_threads = True

    def __init__(self, on_report: Callable[[bytes], object], *, host: str = "127.0.0.1") -> None:
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(site.page.encode())

            def do_POST(self) -> None:
                on_report(self.rfile.read(int(self.headers.get("content-length", 0))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.page = ""
        self.origin = f"http://{host}:{self.server_port}"

    def __enter__(self) -> "Site":
        self._serving = threading.Thread(target=self.serve_forever)
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._serving.join()
        self.server_close()


def dump_dom(url: str, directory: Path) -> str:
    """Return the page at `url` as text, after it has loaded."""
    command = [*_command(directory), "--virtual-time-budget=20000", "--dump-dom", url]
    return subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True).stdout.decode()


@contextmanager
def visiting(url: str, directory: Path) -> Iterator[None]:
    """Show the page at `url` in a browser while the block runs."""
    with (directory / "browser.log").open("wb") as log:
        browser = subprocess.Popen([*_command(directory), "--remote-debugging-port=0", url], stdout=log, stderr=log)
    try:
        yield
    finally:
        browser.terminate()
        try:
            browser.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            browser.kill()
            browser.wait(WAIT_S)


def _command(directory: Path) -> list[str]:
    browser = find_browser()
    assert browser is not None
    return [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
        "--no-proxy-server", f"--user-data-dir={directory / 'profile'}",
    ]  # fmt: skip
