"""Run the commands of the documentation, so that a wrong page fails a test.

Bash runs every fenced `sh` block of README.md and docs/**/*.md, in order, in a directory that is empty at the start of
the page. A page has one server; its blocks share the directory, their variables, and the data on the server. The test
replaces `localhost:4000` and `127.0.0.1:4000` with the server address, `/var/lib/topics` with its data directory,
and `/backup` with a temporary directory. A block fails if one of its commands fails, or if a curl gets a status of 400
or above. `curl -N` follows a stream for a few seconds.

An HTML comment on the line before a fence changes that:

    <!-- expect: 409 -->             these answers of the block are errors, in this order: `expect: 404 409`
    <!-- not run: needs root -->     the block is skipped, for this reason
    <!-- run -->                     before a `python` block: run this one too (others are fragments)
    <!-- answer -->                  before a `json` block: the expected answer to the last curl; fields can be
                                     omitted, and the values of fields in VARIES are not compared
    <!-- server: api_keys=a:read --> anywhere in a page: settings of its server, `TOPICS_*` without the prefix
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ServerProcess

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK_TIMEOUT_S = 60
STREAM_S = 3

# A block that would change the machine must be marked as not run.
CHANGES_THE_MACHINE = re.compile(
    r"(?m)(?:^|[;&|(]) *(?:\w+=\S+ +)*(?:\S*/)?"
    r"(sudo|apt|apt-get|brew|pip|pip3|make|install|chown|useradd|adduser|systemctl|docker|git) "
)

# Fields whose values differ between runs.
VARIES = {
    "$ts", "deadline", "deadlines", "effective_priority", "epoch", "lag_ms", "last_read_ts", "last_write_ts",
    "lease_id", "message", "next_cursor", "performance", "stream_url", "updated_ms", "uptime_ms", "version", "wid",
}  # fmt: skip

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

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=ticks)\s*?$", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(r"<!-- (?P<name>expect|not run|run|answer)(?:: (?P<value>[^\n]*?))? -->\n\Z")
_SERVER = re.compile(r"^<!-- server: (.*?) -->$", re.MULTILINE)


class Block(NamedTuple):
    """One fenced block, and its mark: the comment before it."""

    language: str
    text: str
    line: int
    mark: str = ""
    value: str = ""

    @property
    def is_shown_answer(self) -> bool:
        return self.language == "json" and self.mark == "answer"

    @property
    def is_run(self) -> bool:
        return self.mark != "not run" and (self.language == "sh" or (self.language == "python" and self.mark == "run"))


class Answer(NamedTuple):
    """The answer to one curl; `status` is 0 without an answer."""

    status: int
    body: str
    failure: str


def blocks_of(text: str) -> Iterator[Block]:
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        mark = _MARK.search(text, 0, fence.start())
        if mark is None:
            yield Block(fence["language"], fence["text"], line)
        else:
            yield Block(fence["language"], fence["text"], line, mark["name"], mark["value"] or "")


def settings_of(text: str) -> dict[str, object]:
    found = _SERVER.search(text)
    return dict(pair.split("=", 1) for pair in found[1].split()) if found else {}


class Shell:
    """A shell in an empty directory, and a server."""

    def __init__(self, directory: Path, server: ServerProcess, data_dir: Path) -> None:
        self._cwd, self._answers, tools = directory / "here", directory / "answers", directory / "tools"
        for path in (self._cwd, self._answers, tools):
            path.mkdir(parents=True)
        (tools / "curl").write_text(CURL)
        (tools / "curl").chmod(0o755)
        address = f"127.0.0.1:{server.port}"
        self._real = {
            "localhost:4000": address,
            "127.0.0.1:4000": address,
            "/var/lib/topics": str(data_dir),
            "/backup": str(directory / "backup"),
        }
        self._state = directory / "state"
        self._output = directory / "output"
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self._env = env | {
            "PATH": os.pathsep.join([str(tools), str(Path(sys.executable).parent), env["PATH"]]),
            "HOME": str(directory),
            "DOCS_ANSWERS": str(self._answers),
            "DOCS_CURL": shutil.which("curl") or "curl",
        }

    def run(self, block: Block) -> tuple[list[Answer], str]:
        """Run a block. Return the answers to its curls, and another failure if there is one."""
        text = block.text
        for shown, real in self._real.items():
            text = text.replace(shown, real)
        if block.language == "python":
            command = [sys.executable, "-c", text]
        else:  # variables are exported for the next block
            command = ["bash", "-c", f"set -aeu\ntrap 'env -0 > {self._state}' EXIT\n{text}"]
        status = self._execute(command)
        answers = self._take_answers()
        if self._state.exists():
            pairs = (pair.partition("=") for pair in self._state.read_text().split("\0") if pair)
            self._env = {name: value for name, _, value in pairs}
        if not status or (block.mark == "expect" and status != "timeout"):
            return answers, ""
        return answers, f"ended with {status}: {self._output.read_text(errors='replace')[-2000:]}"

    def _execute(self, command: list[str]) -> int | str:
        with self._output.open("wb") as output:
            process = subprocess.Popen(
                command, cwd=self._cwd, env=self._env, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            return process.wait(BLOCK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:  # also end processes in the background
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

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


def problems_of(page: Path, shell: Shell) -> Iterator[str]:
    last: Answer | None = None
    for block in blocks_of(page.read_text()):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.is_shown_answer:
            got = None if last is None else _json_in(last.body)
            yield from (f"{where}: {what}" for what in differences(json.loads(block.text), got))
        if not block.is_run:
            continue
        if found := CHANGES_THE_MACHINE.search(block.text):
            yield f"{where}: uses {found[1]}, so it needs a `not run` and its reason"
            continue
        answers, failure = shell.run(block)
        last = answers[-1] if answers else last
        if failure:
            yield f"{where}: {failure}"
        yield from (f"{where}: {answer.failure}" for answer in answers if answer.failure)
        refused = [answer.status for answer in answers if answer.status >= 400]
        expected = [int(status) for status in block.value.split()] if block.mark == "expect" else []
        if refused != expected:
            bodies = "\n".join(answer.body for answer in answers if answer.status >= 400)
            yield f"{where}: answers {refused} are errors, {expected} were expected\n{bodies}"


def _json_in(body: str) -> Any:
    """Return the body as JSON, without the headers that `curl -i` prints."""
    return json.loads(body.rpartition("\r\n\r\n")[2])


def differences(shown: Any, got: Any, at: str = "answer") -> Iterator[str]:
    """Yield the differences between an answer and the example of a page."""
    if isinstance(shown, dict) and isinstance(got, dict):
        for name, value in shown.items():
            if name not in got:
                yield f"{at} has no {name}"
            elif name not in VARIES:
                yield from differences(value, got[name], f"{at}.{name}")
    elif isinstance(shown, list) and isinstance(got, list) and len(shown) == len(got):
        for number, (one, other) in enumerate(zip(shown, got, strict=True)):
            yield from differences(one, other, f"{at}[{number}]")
    elif shown != got:
        yield f"{at} is {json.dumps(got)}, the page shows {json.dumps(shown)}"


def _has_commands(page: Path) -> bool:
    return any(block.is_run for block in blocks_of(page.read_text()))


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="needs curl and bash")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if _has_commands(page)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    server = ServerProcess(tmp_path / "server", {"data_dir": data_dir, **settings_of(page.read_text())})
    try:
        problems = list(problems_of(page, Shell(tmp_path / "reader", server, data_dir)))
    except BaseException:
        server.kill()
        raise
    server.stop()
    assert not problems, "\n\n".join(problems)


def test_mark_applies_to_the_next_block() -> None:
    expecting = "<!-- expect: 404 409 -->\n```sh\ncurl a\n```\n"
    left_alone = "<!-- not run: needs root -->\n```sh\ncurl c\n```\n"
    first, second, third = blocks_of(f"{expecting}\n```sh\ncurl b\n```\n{left_alone}")
    assert (first.text, first.mark, first.value) == ("curl a\n", "expect", "404 409")
    assert (second.mark, second.is_run) == ("", True)
    assert (third.value, third.is_run) == ("needs root", False)


def test_nested_fence_is_not_a_block() -> None:
    [block] = blocks_of("````markdown\n```sh\nrm -r .\n```\n````\n")
    assert not block.is_run


def test_example_answer_can_omit_fields() -> None:
    answer = {"topic": "a", "records": [{"$seq": 1, "$ts": 5, "data": 7}], "lag": 0}
    assert not list(differences({"records": [{"$seq": 1, "$ts": 99}]}, answer))
    assert list(differences({"records": [{"$seq": 2}]}, answer)) == ["answer.records[0].$seq is 1, the page shows 2"]
    assert list(differences({"caught_up": True}, answer)) == ["answer has no caught_up"]
