"""Run the real `topics` command: in a pipe, and in a pseudo-terminal where a person could sit."""

import fcntl
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
from pathlib import Path

from tests import forks

TOPICS = str(Path(sys.executable).parent / "topics")
WAIT_S = 30
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\r")


class Cli:
    """The command of one user: its environment has a server and an empty home."""

    def __init__(self, home: Path, url: str | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        size = ("COLUMNS", "LINES")  # xdist sets these, and they would win over the size of a pseudo-terminal
        kept = {n: value for n, value in os.environ.items() if not n.startswith("TOPICS_") and n not in size}
        self.env = kept | {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), "TERM": "xterm-256color"}
        self.env.pop("NO_COLOR", None)
        if url is not None:
            self.env["TOPICS_URL"] = url

    def pipe(self, *words: str, stdin: bytes | str = b"", **env: str) -> "Done":
        """Run a command whose input and output are pipes."""
        data = stdin.encode() if isinstance(stdin, str) else stdin
        status, out, err = forks.run([TOPICS, *words], self.env | env, data, WAIT_S)
        return Done(status, out.decode(), err.decode())

    def real(self, *words: str) -> "Done":
        """Run the installed script in a new interpreter, with pipes."""
        done = subprocess.run([TOPICS, *words], input=b"", env=self.env, capture_output=True, timeout=WAIT_S)
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *words: str, **env: str) -> "Running":
        """Start a command in the background, with its output in a pipe."""
        return Running(
            subprocess.Popen(
                [TOPICS, *words],
                env=self.env | env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                preexec_fn=_take_interrupts,
            )
        )

    def tty(self, *words: str, typed: str = "", columns: int = 120, **env: str) -> "Done":
        """Run a command on a terminal and type into it. Its output has both of its streams, without colours."""
        with Terminal(self, *words, columns=columns, **env) as terminal:
            if typed:
                terminal.type(typed)
            status = terminal.wait()
            return Done(status, plain(terminal.seen), "", terminal.seen)


class Done:
    """A command that ended."""

    def __init__(self, status: int, out: str, err: str, raw: str = "") -> None:
        self.status, self.out, self.err, self.raw = status, out, err, raw

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def __repr__(self) -> str:
        return f"exit status {self.status}\n{self.out}\n{self.err}"


class Running:
    """A command that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process = process

    def line(self) -> str:
        """Return the next line of its output. A test that gets none runs into the timeout of pytest."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().rstrip("\n")

    def error_line(self) -> str:
        """Return the next line of its standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode().rstrip("\n")

    def interrupt(self) -> Done:
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> Done:
        out, err = self.process.communicate(timeout=WAIT_S)
        return Done(self.process.returncode, out.decode(), err.decode())

    def __enter__(self) -> "Running":
        return self

    def __exit__(self, *failure: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(
        self, cli: Cli, *words: str, columns: int = 120, rows: int = 40, program: str = TOPICS, **env: str
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.seen = ""
        self._process: subprocess.Popen[bytes] | forks.Forked
        if program == TOPICS:
            self._process = forks.template().start([TOPICS, *words], cli.env | env, slave, slave, slave)
        else:
            self._process = subprocess.Popen(
                [program, *words], env=cli.env | env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                preexec_fn=_own_terminal,
            )  # fmt: skip
        os.close(slave)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        """Read the screen until it shows the text."""
        deadline = time.monotonic() + WAIT_S
        while text not in plain(self.seen):
            assert time.monotonic() < deadline, f"no {text!r} in:\n{plain(self.seen)}"
            assert self._read(), f"ended without {text!r}:\n{plain(self.seen)}"

    def wait(self) -> int:
        """Read the screen until the command ends. Return its exit status."""
        deadline = time.monotonic() + WAIT_S
        while self._read():
            assert time.monotonic() < deadline, f"still running:\n{plain(self.seen)}"
        return self._process.wait(WAIT_S)

    def interrupt(self) -> int:
        self.type("\x03")
        return self.wait()

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.5)[0]:
            return self._process.poll() is None or bool(select.select([self._master], [], [], 0)[0])
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # Linux reports the end of a terminal as EIO
            return False
        self.seen += chunk.decode(errors="replace")
        return bool(chunk)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)


def _take_interrupts() -> None:
    """Undo an ignored SIGINT, which a process in the background of a shell script inherits."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _own_terminal() -> None:
    """Make the terminal that of the new session, so that Ctrl-C reaches the command."""
    _take_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def plain(text: str) -> str:
    """Return text of a terminal without its control sequences."""
    return _ESCAPES.sub("", text)
