"""Runs the commands and snippets of docs/pipelines.md, in order, against two real servers and in one session.

A `shell` block is run command by command: those that begin with `topics` by the command line's own `main`, in the
session of the tests, since a JVM for each would take minutes; others by bash. Comments on the line before a fence, as
in tests/docs: `<!-- not run: reason -->`, `<!-- exits: 1 -->` for the last command. `python` blocks are run, too.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import StartServer
from topics.cli.main import main

PAGE = Path(__file__).parents[3] / "docs" / "pipelines.md"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"<!-- (not run|exits): (.*?) -->\n\Z")


def commands(block: str) -> list[str]:
    """Yield commands: one continues after a backslash, and while a quote is open."""
    found, held = [], ""
    for line in block.splitlines():
        held += line + "\n"
        try:
            shlex.split(held.replace("\\\n", " "))
        except ValueError:
            continue
        if not held.endswith("\\\n"):
            found.append(held.strip())
            held = ""
    return [command for command in found if command and not command.startswith("#")]


def run(command: str) -> int:
    if command.startswith("topics "):
        return main(shlex.split(command.replace("\\\n", " "))[1:])
    return subprocess.run(["bash", "-ec", command.replace("curl -s", "curl -sf")], check=False, timeout=60).returncode


def test_every_command_of_the_page_works(
    spark: SparkSession, start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one, other = start_server(data_dir=tmp_path / "one"), start_server(data_dir=tmp_path / "other")
    real = {
        "127.0.0.1:4000": f"127.0.0.1:{one.port}", "127.0.0.1:4001": f"127.0.0.1:{other.port}",
        "/out/": f"{tmp_path}/out/", "/lake": f"{tmp_path}/lake",
    }  # fmt: skip
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = PAGE.read_text()
    names: dict[str, Any] = {"__name__": "docs"}
    ran = 0
    for fence in FENCE.finditer(text):
        mark = MARK.search(text, 0, fence.start())
        language, block = fence[1], fence[2]
        if mark is not None and mark[1] == "not run":
            continue
        for shown, meant in real.items():
            block = block.replace(shown, meant)
        line = text[: fence.start()].count("\n") + 1
        if language == "python":
            exec(compile("\n" * line + block, str(PAGE), "exec"), names)  # so that a failure names the page's line
        elif language == "shell":
            for command in (found := commands(block)):
                expected = int(mark[2]) if mark is not None and command is found[-1] else 0
                assert run(command) == expected, f"line {line}: {command}"
                ran += 1
    assert ran > 8
