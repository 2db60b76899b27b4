"""`topics demo`: a server in a temporary directory, a small shop that uses it, and what to look at."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from topics.cli.command import Subparsers
from topics.cli.connect.server import Server
from topics.cli.connect.target import Target
from topics.cli.output.failures import EXIT_DONE, Failure
from topics.cli.output.screen import Screen
from topics.cli.output.units import parse_duration
from topics.cli.servers import dev
from topics.cli.servers.shop import Shop
from topics.errors import TopicsError

STOP_S = 20.0
TURN_S = 0.2

TOUR = (
    ("topics top", "everything at once: rates, lag, jobs, losses"),
    ("topics ls --rates", "the topics of the shop"),
    ("topics read orders --last 5 -f", "orders as they come"),
    ("topics read clicks --from 1 --limit 3", "a capped topic: the gap says which records were lost"),
    ("topics queue ls", "emails to send; one address always fails"),
    ("topics queue dead emails", "its jobs end here; `topics queue redrive emails` returns them"),
    ("topics router ls", "orders of the EU are copied to orders-eu"),
    ("topics consumer ls orders", "two consumers: billing keeps up, search is behind"),
)


def register(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    text = "start a server with a small shop to look at"
    parser = subparsers.add_parser(
        "demo",
        help=text,
        description=f"{text.capitalize()}. Ctrl-C stops it and removes everything.",
        allow_abbrev=False,
    )
    parser.add_argument("--port", metavar="PORT", default="0", help="port of the server [a free one]")
    parser.add_argument("--time", metavar="DURATION", type=parse_duration, help="stop after this time [Ctrl-C]")
    parser.add_argument("--open", action="store_true", help="open the console in a browser")
    parser.add_argument("--json", action="store_true", help="print the addresses as JSON, also on a terminal")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    screen = Screen(as_json=args.json)
    try:
        with tempfile.TemporaryDirectory(prefix="topics-demo-") as folder, _stoppable():
            with _server(Path(folder), args.port) as url, Server(Target(url=url, source="demo")) as server:
                with _stop_quietly():
                    _introduce(screen, url, opens=args.open)
                    _play(Shop(server), args.time)
    except (Failure, TopicsError) as error:
        screen.fail(str(error), getattr(error, "next_step", ""))
        return getattr(error, "status", 1)
    screen.note("stopped; nothing was left behind")
    return EXIT_DONE


def _play(shop: Shop, time_ms: int | None) -> None:
    """Play turns of the shop until the time is up or a signal arrives."""
    shop.open()
    deadline = None if time_ms is None else time.monotonic() + time_ms / 1000
    while deadline is None or time.monotonic() < deadline:
        shop.turn()
        time.sleep(TURN_S)


@contextmanager
def _stop_quietly() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        pass


@contextmanager
def _stoppable() -> Iterator[None]:
    """Let SIGTERM stop the demo as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _server(folder: Path, port: str) -> Iterator[str]:
    """Start a server in a process of its own, and stop it at the end."""
    port_file, log_path = folder / "port", folder / "log"
    command = [
        sys.executable, "-m", "topics", "serve", "--port", port, "--port-file", str(port_file),
        "--data-dir", str(folder / "data"), "--log-level", "warning",
    ]  # fmt: skip
    with log_path.open("wb") as log:
        # A session of its own: Ctrl-C reaches this process, which stops the server in order.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    try:
        url = _wait(process, port_file)
        if url is None:
            raise Failure(f"the server did not start: {log_path.read_text(errors='replace').strip()[-500:]}")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], port_file: Path) -> str | None:
    deadline = time.monotonic() + dev.READY_S
    while process.poll() is None and time.monotonic() < deadline:
        if port_file.exists():
            return dev.wait_until_ready(port_file)
        time.sleep(dev.LOOK_S)
    return None


def _introduce(screen: Screen, url: str, *, opens: bool) -> None:
    console = f"{url}/console" if dev.has_console(url) else None
    if not screen.is_human:
        screen.json({"url": url, "console": console})
        screen.flush()
    else:
        screen.line(f"{screen.paint('A shop is open at', 'bold')} {url}")
        if console:
            screen.line(f"{screen.paint('Console', 'bold')}           {console}")
        screen.line(f"\nIn another terminal: {screen.paint(f'export TOPICS_URL={url}', 'cyan')}, then try\n")
        width = max(len(command) for command, _ in TOUR)
        for command, text in TOUR:
            screen.line(f"  {screen.paint(command.ljust(width), 'green')}  {screen.paint(text, 'dim')}")
        screen.line("\nCtrl-C stops the shop and removes everything.")
        screen.flush()
    if opens and console:
        import webbrowser

        webbrowser.open(console)
