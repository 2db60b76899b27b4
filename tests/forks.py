"""Start `topics` commands and Python programs as forks of a process that has imported the package.

A new interpreter imports the server for 0.4 s of processor time, and the suite starts more than a thousand commands.
A fork begins at the entry point of the command, with its own arguments, variables and open files.

Each fork has a connection to the template. The request on it is the directory, the number of arguments, the arguments
and the variables, with NUL between them; input, output and error output come with it as descriptors. The answers are
the process id and, at the end, the exit status. Every byte that follows the request is a signal for the fork. The
template kills the fork if the connection is closed. `tests/launch.py` does that for commands in shell scripts.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import io
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_MESSAGE_BYTES = 1 << 20
_LAUNCHER = Path(__file__).with_name("launch.py")

# A server is a process of its own: a shell that has killed it starts the next one at once.
_SCRIPT = """#!/bin/sh
case "{name} $1" in
"topics serve") ;;
topics* | "python -c" | python*.py) exec {launch} "$@" ;;
esac
exec {own} "$@"
"""


class Forked:
    """A started command, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, connection: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._connection = connection

    def poll(self) -> int | None:
        self._wait_ms(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._wait_ms(None if timeout is None else timeout * 1000)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(f"the fork {self.pid}", timeout or 0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_ms(self, timeout_ms: float | None) -> None:
        if self.returncode is not None:
            return
        ready = select.poll()
        ready.register(self._connection, select.POLLIN)
        if ready.poll(timeout_ms):
            text = os.read(self._connection, 64)
            self.returncode = int(text) if text else -signal.SIGKILL  # the template was killed, and its forks with it
            os.close(self._connection)


class Template:
    """The process that is forked."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="forks-")
        self.address = str(Path(self._directory.name) / "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(self.address)
            listening.listen(100)
            command = [sys.executable, "-m", __name__, str(listening.fileno())]
            root = Path(__file__).parents[1]
            self._process = subprocess.Popen(command, cwd=root, pass_fds=[listening.fileno()], stdin=subprocess.PIPE)

    def start(
        self, argv: list[str], env: dict[str, str], stdin: int, stdout: int, stderr: int, cwd: str | None = None
    ) -> Forked:
        """Start a command. If the first argument is `python`, the others are those of Python: a file, or `-c`.

        The files are descriptors; the fork gets copies.
        """
        words = [cwd or os.getcwd(), str(len(argv)), *argv, *(f"{name}={value}" for name, value in env.items())]
        request = "\0".join(words).encode("utf-8", "surrogateescape")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
            connection.connect(self.address)
            socket.send_fds(connection, [request], [stdin, stdout, stderr])
            pid = int(connection.recv(64))
            return Forked(pid, connection.detach())

    def launcher(self, name: str) -> str:
        """Return a shell script that starts `topics` or `python` as a fork, and ends as the fork ends."""
        launch = shlex.join([sys.executable, "-IS", str(_LAUNCHER), self.address, name])
        own = shlex.quote(str(Path(sys.executable).with_name(name)))
        return _SCRIPT.format(name=name, launch=launch, own=own)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._directory.cleanup()


def run(
    argv: list[str], env: dict[str, str], data: bytes, timeout_s: float, cwd: str | None = None
) -> tuple[int, bytes, bytes]:
    """Run a command in pipes. Return its exit status and what it wrote to its output and its error output."""
    (reads, stdin), (out, writes), (err, complains) = os.pipe(), os.pipe(), os.pipe()
    started = template().start(argv, env, reads, writes, complains, cwd)
    for theirs in (reads, writes, complains):
        os.close(theirs)
    with ThreadPoolExecutor(3) as pool:
        pool.submit(_write_all, stdin, data)
        printed, complaints = pool.submit(_read_all, out), pool.submit(_read_all, err)
        try:
            return started.wait(timeout_s), printed.result(), complaints.result()
        finally:
            started.kill()


def _write_all(file: int, data: bytes) -> None:
    try:
        with open(file, "wb") as pipe:
            pipe.write(data)
    except BrokenPipeError:
        pass  # the command did not read everything


def _read_all(file: int) -> bytes:
    with open(file, "rb") as pipe:
        return pipe.read()


_template: Template | None = None
_making = threading.Lock()


def template() -> Template:
    """Return the template of this process. It is started when it is first needed."""
    global _template
    with _making:
        if _template is None:
            _template = Template()
            atexit.register(_template.close)
        return _template


# --- the process that is forked


_USED = (
    "encodings.idna", "topics.client._async.client", "topics.client._sync.client", "topics.engine.offline.verify",
    "topics.server.app", "topics.storage.backup",
)  # fmt: skip


def _import_everything() -> None:
    from importlib import import_module

    from topics.cli.options import build_parser

    for name in _USED:
        import_module(name)
    build_parser()
    gc.collect()
    gc.freeze()


class _Forks:
    """The running forks and their connections."""

    def __init__(self) -> None:
        self.pids: dict[socket.socket, int] = {}

    def follow(self, connection: socket.socket) -> list[str] | None:
        """Read from a connection. Return the arguments of the command if this process is its fork."""
        if connection in self.pids:
            self._pass_on(connection)
            return None
        message, files, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 3)
        if not message:
            connection.close()
            return None
        if not (pid := os.fork()):
            return _become(message, files)
        self.pids[connection] = pid
        for file in files:
            os.close(file)
        _answer(connection, pid)
        return None

    def _pass_on(self, connection: socket.socket) -> None:
        """Send the signals that the connection asks for to its fork, or kill the fork if the connection is closed."""
        pid = self.pids[connection]
        try:
            numbers = connection.recv(64)
        except ConnectionResetError:
            numbers = b""
        for number in numbers or [signal.SIGKILL]:
            os.kill(pid, number)  # a fork that has ended is a zombie until `report_ended`
        if not numbers:
            os.waitpid(pid, 0)
            del self.pids[connection]
            connection.close()

    def report_ended(self) -> None:
        for connection, pid in [*self.pids.items()]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _answer(connection, os.waitstatus_to_exitcode(status))
                del self.pids[connection]
                connection.close()


def _answer(connection: socket.socket, number: int) -> None:
    try:
        connection.send(str(number).encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # the test has ended


def _serve(listening: socket.socket) -> list[str]:
    """Fork for every request. Return the arguments of the command, in the fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and the tests end this process
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    forks = _Forks()
    new: list[socket.socket] = []
    while True:
        readable, _, _ = select.select([0, woken, listening, *forks.pids, *new], [], [])
        if 0 in readable:  # the tests have ended; they have stopped their forks, unless they were interrupted
            for pid in forks.pids.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if woken in readable:
            os.read(woken, 4096)
            forks.report_ended()
        for connection in [one for one in (*forks.pids, *new) if one in readable]:  # closed ones before requests
            if connection in new:
                new.remove(connection)
            if argv := forks.follow(connection):
                return argv
        if listening in readable:
            new.append(listening.accept()[0])


def _become(message: bytes, files: list[int]) -> list[str]:
    """Set up the fork as a new process would be. Return its arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in range(3):
        os.dup2(files[number], number)
    os.closerange(3, 65536)
    if os.isatty(0):  # Ctrl-C in it is for the fork
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    cwd, count, *words = message.decode("utf-8", "surrogateescape").split("\0")
    argv, variables = words[: int(count)], words[int(count) :]
    os.environ.clear()
    os.environ.update(variable.split("=", 1) for variable in variables)
    time.tzset()
    os.chdir(cwd)
    sys.stdin = io.TextIOWrapper(open(0, "rb"), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(open(1, "wb"), encoding="utf-8", line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(
        open(2, "wb", buffering=0), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    return argv


def _exit(status: int) -> None:
    """End this process as Python does, but do not free every object: that would copy the memory of the template."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _run_python(arguments: list[str]) -> None:
    """Run a file or the text after `-c`, as Python does."""
    first = arguments[0]
    text = arguments[1].encode() if first == "-c" else Path(first).read_bytes()
    sys.argv = ["-c", *arguments[2:]] if first == "-c" else arguments
    sys.path[0] = "" if first == "-c" else str(Path(first).resolve().parent)
    program = ModuleType("__main__")
    program.__file__ = first
    sys.modules["__main__"] = program
    exec(compile(text, "<string>" if first == "-c" else first, "exec"), vars(program))


if __name__ == "__main__":
    from topics.cli.main import main

    _import_everything()
    sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    status: object = None
    try:
        status = _run_python(sys.argv[1:]) if sys.argv[0] == "python" else main()
    except SystemExit as asked:
        status = asked.code
    if status is None or isinstance(status, int):
        _exit(status or 0)
    sys.exit(str(status))
