"""Start `topics` commands as forks of a process that has imported the package.

A new interpreter imports the server for 0.4 s of processor time, and the suite starts more than a thousand commands.
A fork begins at the entry point of the command, with its own arguments, variables and open files.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_MESSAGE_BYTES = 1 << 20
_FILES = 4  # stdin, stdout, stderr, and the pipe for the exit status


class Forked:
    """A started command, with the methods of `subprocess.Popen` that the tests use."""

    def __init__(self, pid: int, status_pipe: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status_pipe = status_pipe

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
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _wait_ms(self, timeout_ms: float | None) -> None:
        if self.returncode is not None:
            return
        ready = select.poll()
        ready.register(self._status_pipe, select.POLLIN)
        if ready.poll(timeout_ms):
            text = os.read(self._status_pipe, 64)
            self.returncode = int(text) if text else -signal.SIGKILL  # the template was killed, and its forks with it
            os.close(self._status_pipe)


class Template:
    """The process that is forked."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._channel, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES)
        self._one_request = threading.Lock()
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        root = Path(__file__).parents[1]
        self._process = subprocess.Popen(command, cwd=root, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()

    def start(
        self, argv: list[str], env: dict[str, str], stdin: int, stdout: int, stderr: int, cwd: str | None = None
    ) -> Forked:
        """Start a command. The files are descriptors; the fork gets copies."""
        request = json.dumps({"argv": argv, "env": env, "cwd": cwd or os.getcwd()}).encode()
        status_pipe, theirs = os.pipe()
        with self._one_request:
            socket.send_fds(self._channel, [request], [stdin, stdout, stderr, theirs])
            os.close(theirs)
            pid = int(self._channel.recv(64))
        return Forked(pid, status_pipe)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def run(argv: list[str], env: dict[str, str], data: bytes, timeout_s: float) -> tuple[int, bytes, bytes]:
    """Run a command in pipes. Return its exit status and what it wrote to its output and its error output."""
    (reads, stdin), (out, writes), (err, complains) = os.pipe(), os.pipe(), os.pipe()
    started = template().start(argv, env, reads, writes, complains)
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


def _import_everything() -> None:
    from importlib import import_module

    from topics.cli.main import build_parser

    import_module("topics.server.app")
    build_parser()
    gc.collect()
    gc.freeze()


def _serve(channel: socket.socket) -> list[str]:
    """Fork for every request. Return the arguments of the command, in the fork."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and the tests end this process
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    status_pipes: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([channel, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            _report_ended(status_pipes)
        if channel not in readable:
            continue
        message, files, _, _ = socket.recv_fds(channel, _MESSAGE_BYTES, _FILES)
        if (
            not message
        ):  # the tests have ended, and would have stopped these themselves if they had not been interrupted
            for pid in status_pipes:
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        if not (pid := os.fork()):
            return _become(json.loads(message), files)
        status_pipes[pid] = files[3]
        for file in files[:3]:
            os.close(file)
        channel.send(str(pid).encode())


def _report_ended(status_pipes: dict[int, int]) -> None:
    while status_pipes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        pipe = status_pipes.pop(pid)
        try:
            os.write(pipe, str(os.waitstatus_to_exitcode(status)).encode())
        except BrokenPipeError:
            pass  # the test did not ask
        os.close(pipe)


def _become(request: dict[str, object], files: list[int]) -> list[str]:
    """Set up the fork as a new process would be. Return its arguments."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in range(3):
        os.dup2(files[number], number)
    os.closerange(3, 65536)
    env, argv, cwd = request["env"], request["argv"], request["cwd"]
    assert isinstance(env, dict)
    assert isinstance(argv, list)
    assert isinstance(cwd, str)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(cwd)
    sys.stdin = io.TextIOWrapper(open(0, "rb"), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(open(1, "wb"), encoding="utf-8", line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(
        open(2, "wb", buffering=0), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    return argv


if __name__ == "__main__":
    from topics.cli.main import main

    _import_everything()
    sys.argv = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.exit(main())
