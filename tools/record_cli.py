"""Record commands of `topics` as SVG pictures, for docs/guide/cli.md: `python tools/record_cli.py`.

Starts `topics demo`, runs each command on a pseudo-terminal, and draws what the terminal got with rich. The figures in
the pictures are those of the run.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

TOPICS = str(Path(sys.executable).parent / "topics")
PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS, ROWS = 104, 30
WARM_UP_S = 12.0
WAIT_S = 30.0


def record(words: list[str], url: str, *, meanwhile: Callable[[], None] | None = None, seconds: float = 0.0) -> str:
    """Run a command on a terminal and return its output. With `seconds`, interrupt it after that time."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    env = {**os.environ, "TOPICS_URL": url, "TERM": "xterm-256color"}
    process = subprocess.Popen([TOPICS, *words], env=env, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen, began = b"", time.monotonic()
    while time.monotonic() - began < WAIT_S:
        if select.select([master], [], [], 0.1)[0]:
            try:
                seen += os.read(master, 65536)
            except OSError:
                break
        if meanwhile is not None and seen:
            meanwhile, done = None, meanwhile
            done()
        if seconds and time.monotonic() - began > seconds:
            process.send_signal(signal.SIGINT)
            seconds = 0.0
    process.wait()
    os.close(master)
    return seen.decode(errors="replace").replace("\r", "")


def draw(name: str, command: str, output: str) -> None:
    """Write the picture of a command and its output."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "green"), (command, "bold")))
    console.print(Text.from_ansi(output.rstrip()))
    svg = console.export_svg(title=command, unique_id=f"topics-{name}")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # the fonts would come from another host
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / f"cli-{name}.svg").write_text(svg)


def main() -> int:
    demo = subprocess.Popen([TOPICS, "demo", "--json"], stdout=subprocess.PIPE)
    try:
        assert demo.stdout is not None
        url = json.loads(demo.stdout.readline())["url"]
        time.sleep(WARM_UP_S)
        draw("ls", "topics ls --rates", record(["ls", "--rates"], url))
        draw("top", "topics top", record(["top", "--count", "1"], url))
        env = {**os.environ, "TOPICS_URL": url}

        def write(*values: int) -> None:
            subprocess.run(
                [TOPICS, "append", "ticker", *map(str, values)], env=env, stdout=subprocess.DEVNULL, check=True
            )

        subprocess.run(
            [TOPICS, "create", "ticker", "--cap-records", "3"], env=env, stdout=subprocess.DEVNULL, check=True
        )
        write(1, 2)
        followed = record(["read", "ticker", "-f"], url, meanwhile=lambda: write(*range(3, 11)), seconds=5)
        draw("read", "topics read ticker -f", followed.replace("^C", ""))
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait()
    draw("demo", "topics demo", record(["demo", "--time", "1s"], url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
