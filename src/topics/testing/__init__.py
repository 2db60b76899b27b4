"""For tests of programs that use topics: a real server in memory, on a free port, in its own process.

The pytest fixture `topics_server` yields the URL of a server that runs during the test. The server itself
does not import this.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 30.0
STOP_S = 10.0


@contextmanager
def server(*, data_dir: str | os.PathLike[str] | None = None, **settings: object) -> Iterator[str]:
    """Start a server, yield its URL, and stop it. Settings are those of `topics settings`, in lower case.

        with server(max_record_bytes=1000) as url: ...

    Without `data_dir` nothing is written to the disk. Raises `RuntimeError` with the log if the server does not start.
    """
    with tempfile.TemporaryDirectory(prefix="topics-") as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        env |= {f"TOPICS_{name.upper()}": str(value) for name, value in ({"port": 0} | settings).items()}
        env |= {"TOPICS_DATA_DIR": "" if data_dir is None else os.fspath(data_dir)}
        port_file, log_file = Path(folder, "port"), Path(folder, "log")
        env["TOPICS_PORT_FILE"] = str(port_file)
        with log_file.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "topics", "serve"],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C reaches the program, which then stops the server in order
            )  # fmt: skip
        try:
            yield f"http://127.0.0.1:{_port(process, port_file, log_file)}"
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(process: subprocess.Popen[bytes], port_file: Path, log_file: Path) -> int:
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        if port_file.exists() and (text := port_file.read_text().strip()):
            return int(text)
        time.sleep(0.01)
    raise RuntimeError(f"the server did not start:\n{log_file.read_text(errors='replace')}")
