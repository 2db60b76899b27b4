"""A reader of a page: a directory, a shell with its variables, and the address of a server."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.docs.blocks import PROGRAMS, Block
from tests.docs.terminal import terminal_into
from tests.forks import template

CLIENT = Path(__file__).parents[2] / "clients" / "js" / "topics.js"
NODE = shutil.which("node")

BLOCK_TIMEOUT_S = 100
SLOW_BLOCK_TIMEOUT_S = 300
STREAM_S = 1

# A wrapper of curl that stores the status and body of every answer, and ends streams.
CURL = f"""#!/bin/bash
answer=$DOCS_ANSWERS/$(printf '%05d' "$(ls "$DOCS_ANSWERS" | wc -l)")-$$
extra=()
for argument in "$@"; do
  [[ $argument =~ ^-[a-zA-Z]*N[a-zA-Z]*$|^--no-buffer$ ]] && extra=(--max-time {STREAM_S})
done
"$DOCS_CURL" -sS --dump-header "$answer.head" ${{extra[@]+"${{extra[@]}}"}} "$@" | tee "$answer.body"
status=${{PIPESTATUS[0]}}
[[ $status = 28 && ${{#extra[@]}} != 0 ]] && status=0
echo "$status" > "$answer.exit"
exit "$status"
"""


class Answer(NamedTuple):
    """The answer to one curl; `status` is 0 without an answer."""

    status: int
    body: str
    failure: str


class Reader:
    """Run the blocks of one page. `close` ends the processes that are still in the background."""

    def __init__(self, directory: Path, port: int, data_dir: Path) -> None:
        self._cwd, self._answers, tools = directory / "here", directory / "answers", directory / "tools"
        for path in (self._cwd, self._answers, tools):
            path.mkdir(parents=True)
        (self._cwd / ".venv").symlink_to(sys.prefix)
        scripts = {"curl": CURL, **{name: template().launcher(name) for name in ("python", "topics")}}
        for name, text in scripts.items():
            (tools / name).write_text(text)
            (tools / name).chmod(0o755)
        self._python = str(tools / "python")
        address = f"127.0.0.1:{port}"
        self._real = {
            "localhost:4000": address,
            "127.0.0.1:4000": address,
            "/var/lib/topics": str(data_dir),
            "/backup": str(directory / "backup"),
        }
        self._state = directory / "state"
        self._outputs = directory / "outputs"
        self._outputs.mkdir()
        self._blocks_run = 0
        self._background: list[subprocess.Popen[bytes]] = []
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self._env = env | {
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), env["PATH"]]),
            "HOME": str(directory),
            "XDG_CACHE_HOME": env.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),  # Spark starts faster with it
            "TOPICS_URL": f"http://{address}",
            "TOPICS_PORT": str(port),
            "NO_COLOR": "1",
            "TERM": "xterm",
            "DOCS_ANSWERS": str(self._answers),
            "DOCS_CURL": shutil.which("curl") or "curl",
        }

    def close(self) -> None:
        for process in self._background:
            _kill_group(process)

    def meant(self, text: str) -> str:
        """Return the text of a page with the real address and directories."""
        shown = "|".join(map(re.escape, self._real))
        return re.sub(shown, lambda found: self._real[found[0]], text)  # at once: a real port may begin with 4000

    def save(self, block: Block) -> None:
        """Save a block under the name that its mark gives."""
        path = self._cwd / block.value
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.meant(block.text))

    def run(self, block: Block) -> tuple[list[Answer], str]:
        """Run a block. Return the answers to its curls, and another failure if there is one."""
        status = self._execute(self._command(block), block.mark)
        answers = self._take_answers()
        if self._state.exists():
            pairs = (pair.partition("=") for pair in self._state.read_text().split("\0") if pair)
            self._env = {name: value for name, _, value in pairs}
        if not status or (block.mark == "expect" and status != "timeout"):
            return answers, ""
        return answers, f"ended with {status}: {self.output()[-2000:]}"

    def output(self) -> str:
        """Return what the last block printed."""
        return (self._outputs / str(self._blocks_run)).read_text(errors="replace")

    def _command(self, block: Block) -> list[str]:
        text = self.meant(block.text)
        match PROGRAMS.get(block.language):
            case "python":
                return [self._python, "-c", text]
            case "js":
                shutil.copyfile(CLIENT, self._cwd / "topics.mjs")
                program = self._cwd / f".line-{block.line}.mjs"
                program.write_text(text)
                return [NODE or "node", str(program)]
        # Variables are exported for the next block.
        return ["bash", "-c", f"set -aeu\ntrap 'env -0 > {self._state}' EXIT\n{text}"]

    def _execute(self, command: list[str], mark: str) -> int | str:
        self._blocks_run += 1
        with (self._outputs / str(self._blocks_run)).open("wb") as file, ExitStack() as ended:
            output = ended.enter_context(terminal_into(file)) if mark == "terminal" else file.fileno()
            process = subprocess.Popen(
                command, cwd=self._cwd, env=self._env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            stays = False
            try:
                status = _exit_status(process, SLOW_BLOCK_TIMEOUT_S if mark == "slow" else BLOCK_TIMEOUT_S)
                stays = mark == "background" and status != "timeout"
            finally:
                if not stays:
                    _kill_group(process)
            if stays:
                self._background.append(process)
        return status

    def _take_answers(self) -> list[Answer]:
        answers = []
        for path in sorted(self._answers.glob("*.body")):
            head, failed = path.with_suffix(".head"), path.with_suffix(".exit")
            lines = head.read_text().splitlines() if head.exists() else []
            statuses = [int(line.split()[1]) for line in lines if line.startswith("HTTP/")]
            code = failed.read_text().strip() if failed.exists() else "0"
            failure = "" if code in ("0", "22", "23") else f"curl ended with {code}"  # --fail; closed pipe
            answers.append(Answer(statuses[-1] if statuses else 0, path.read_text(errors="replace"), failure))
        for path in self._answers.iterdir():
            path.unlink()
        return answers


def _exit_status(process: subprocess.Popen[bytes], timeout_s: float) -> int | str:
    """Wait until the process has ended, and return its exit status.

    The process stays a zombie until its group is killed, so that no other process gets its number meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is not None:
            return ended.si_status if ended.si_code == os.CLD_EXITED else f"signal {ended.si_status}"
        time.sleep(0.005)
    return "timeout"


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()
