"""The programs of a page: the blocks that are saved as files."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path
from queue import Queue
from types import TracebackType
from typing import Self

import pytest

from tests import forks
from tests.docs.blocks import blocks_of

ROOT = Path(__file__).parents[2]
WAIT_S = 30


def files_of(page: str) -> dict[str, str]:
    """Return the texts of the files of a page in docs/, by name."""
    return {block.value: block.text for block in blocks_of((ROOT / "docs" / page).read_text()) if block.is_file}


class Programs:
    """The programs of a page in a directory, with the words of `real` in place of those that the page shows.

    A word that the page does not have fails the test: a test must not believe that it changed a delay when it did not.
    """

    def __init__(self, page: str, directory: Path, real: dict[str, str]) -> None:
        self.directory = directory
        texts = files_of(page)
        assert texts, f"{page} has no programs"
        for shown in real:
            assert any(shown in text for text in texts.values()), f"{page} does not have {shown}"
        for name, text in texts.items():
            for shown, meant in real.items():
                text = text.replace(shown, meant)
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
        shutil.copy(ROOT / "clients" / "js" / "topics.js", directory / "topics.mjs")

    def start(self, name: str, *arguments: str) -> Program:
        """Start a program. Use it in a `with` block, which ends it."""
        return Program([name, *arguments], self.directory)

    def run(self, name: str, *arguments: str, status: int = 0) -> list[str]:
        """Run a program to its end. Return the lines that it printed, those on standard error after the others."""
        if name.endswith(".py"):
            command = ["python", name, *arguments]
            ended, out, err = forks.run(command, _env(), b"", WAIT_S, str(self.directory))
        else:
            command = [_node(), name, *arguments]
            done = subprocess.run(command, cwd=self.directory, env=_env(), capture_output=True, timeout=WAIT_S)
            ended, out, err = done.returncode, done.stdout, done.stderr
        printed = (out + err).decode()
        assert ended == status, printed
        return printed.splitlines()


class Program:
    """A program in Python or JavaScript that runs. `line` returns what it prints next."""

    def __init__(self, command: list[str], directory: Path, **variables: str) -> None:
        env, cwd = _env() | variables, str(directory)
        (reads, stdin), (stdout, writes) = os.pipe(), os.pipe()
        self._input, self._output = open(stdin, "w"), open(stdout)
        try:
            self.process: forks.Forked | subprocess.Popen[bytes] = (
                forks.template().start(["python", *command], env, reads, writes, 2, cwd)
                if command[0].endswith(".py")
                else subprocess.Popen([_node(), *command], cwd=cwd, env=env, stdin=reads, stdout=writes)
            )
        except BaseException:
            self._input.close()
            self._output.close()
            raise
        finally:
            os.close(reads)
            os.close(writes)
        self._lines: Queue[str | None] = Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        for text in self._output:
            self._lines.put(text.rstrip("\n"))
        self._lines.put(None)

    def line(self) -> str:
        found = self._lines.get(timeout=WAIT_S)
        assert found is not None, "the program has ended"
        return found

    def rest(self) -> list[str]:
        """Return the lines up to the end of the program."""
        return list(iter(lambda: self._lines.get(timeout=WAIT_S), None))

    def type(self, text: str) -> None:
        self._input.write(text + "\n")
        self._input.flush()

    def end_input(self) -> None:
        self._input.close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reader.join(WAIT_S)
        self._input.close()
        self._output.close()


def _node() -> str:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node found: it runs the JavaScript programs")
    return node


def _env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
