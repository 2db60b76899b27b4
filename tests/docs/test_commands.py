"""Run the commands and programs of the documentation, so that a wrong page fails a test. README.md has the rules."""

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ServerProcess
from tests.docs.blocks import PROGRAMS, Block, blocks_of, settings_of
from tests.docs.reader import NODE, Answer, Reader

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

RECIPES = ROOT / "docs" / "recipes"

# Tests in tests/spark run the programs of these pages, in a session that they share.
SPARK_PAGES = {ROOT / "docs" / "spark.md", ROOT / "docs" / "pipelines.md"}

# A block that would change the machine must be marked as not run.
CHANGES_THE_MACHINE = re.compile(
    r"(?m)(?:^|[;&|(]) *(?:\w+=\S+ +)*(?:\S*/)?"
    r"(sudo|apt|apt-get|brew|pip|pip3|npm|make|install|chown|useradd|adduser|systemctl|docker|git) "
)

# Fields whose values differ between runs.
VARIES = {
    "$ts", "deadline", "at", "deadlines", "effective_priority", "epoch", "lag_ms", "last_read_ts", "last_write_ts",
    "last_read", "lease_id", "message", "next_cursor", "performance", "stream_url", "updated_ms", "uptime_ms",
    "version", "wid",
}  # fmt: skip


_SEQ = re.compile(r"^ *\d+ +", re.MULTILINE)
_TIME = re.compile(r"\b\d\d:\d\d:\d\d\.\d{3}\b|\b\d+\.\d+(?= s\b)")


def is_run(block: Block, page: Path) -> bool:
    return block.is_script or (block.is_program and page not in SPARK_PAGES)


def needs_node(block: Block, page: Path) -> bool:
    return is_run(block, page) and PROGRAMS.get(block.language) == "js"


def problems_of(page: Path, reader: Reader, *, slow: bool = False) -> Iterator[str]:
    """Run a page, its slow blocks only if `slow` is set. Yield what is wrong with it."""
    last: Answer | None = None
    has_run = False
    for block in blocks_of(page.read_text()):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.is_shown_answer:
            try:
                got = None if last is None else _json_in(last.body)
            except ValueError:  # what failed before it is reported as well
                yield f"{where}: the answer is not JSON: {last!r}"
                continue
            yield from (f"{where}: {what}" for what in differences(json.loads(block.text), got))
        elif block.is_shown_output and has_run:
            shown, printed = reader.meant(block.text), reader.output()
            if not is_output(shown, printed, ordered=block.value != "in any order"):
                yield f"{where}: the page shows\n{shown}\nand this was printed:\n{printed}"
        elif block.is_file:
            reader.save(block)
        if block.mark == "not run":
            has_run = False
        if not is_run(block, page):
            continue
        has_run = (slow or block.mark != "slow") and (NODE is not None or not needs_node(block, page))
        if not has_run:
            continue
        if block.is_script and (found := CHANGES_THE_MACHINE.search(block.text)):
            yield f"{where}: uses {found[1]}, so it needs a `not run` and its reason"
            continue
        answers, failure = reader.run(block)
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


def is_output(shown: str, printed: str, *, ordered: bool = True) -> bool:
    """Return whether a page shows what was printed. In the page, `…` stands for any text, and a time for any time.

    Without an order, the lines are compared without the seqs at their start.
    """
    shown, printed = (_TIME.sub("(time)", text) for text in (shown, printed))
    if not ordered:
        shown, printed = ("\n".join(sorted(_SEQ.sub("", text).split("\n"))) for text in (shown, printed))
    shown, printed = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (shown, printed))
    return re.fullmatch(".*".join(map(re.escape, shown.split("…"))), printed, re.DOTALL) is not None


def _has_commands(page: Path) -> bool:
    return any(is_run(block, page) for block in blocks_of(page.read_text()))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _check(page: Path, tmp_path: Path, *, slow: bool) -> None:
    text, data_dir = page.read_text(), tmp_path / "data"
    settings = settings_of(text)
    server = None if settings is None else ServerProcess(tmp_path / "server", {"data_dir": data_dir, **settings})
    reader = Reader(tmp_path / "reader", _free_port() if server is None else server.port, data_dir)
    try:
        problems = list(problems_of(page, reader, slow=slow))
    except BaseException:
        if server is not None:
            server.kill()
        raise
    finally:
        reader.close()
    if server is not None:
        server.stop()
    assert not problems, "\n\n".join(problems)
    if NODE is None and any(needs_node(block, page) for block in blocks_of(text)):
        pytest.skip("no Node found: the JavaScript of the page was not run, everything else was")


needs_shell = pytest.mark.skipif(not (shutil.which("curl") and shutil.which("bash")), reason="needs curl and bash")


def _pages(wanted: Callable[[Path], bool]) -> pytest.MarkDecorator:
    """Return the pages as parameters. The recipes are in the long suite: tests/docs/recipes runs their programs."""
    pages = [
        pytest.param(page, marks=pytest.mark.torture if page.parent == RECIPES else ())
        for page in filter(wanted, PAGES)
    ]
    return pytest.mark.parametrize("page", pages, ids=lambda page: str(page.relative_to(ROOT)))


@needs_shell
@_pages(_has_commands)
def test_every_command_of_a_page_works(page: Path, tmp_path: Path) -> None:
    _check(page, tmp_path, slow=False)


@needs_shell
@pytest.mark.torture
@pytest.mark.xdist_group("spark-processes")
@_pages(lambda page: any(block.mark == "slow" for block in blocks_of(page.read_text())))
def test_slow_commands_of_a_page_work_too(page: Path, tmp_path: Path) -> None:
    _check(page, tmp_path, slow=True)


def test_mark_applies_to_the_next_block() -> None:
    expecting = "<!-- expect: 404 409 -->\n```sh\ncurl a\n```\n"
    left_alone = "<!-- not run: needs root -->\n```sh\ncurl c\n```\n"
    first, second, third = blocks_of(f"{expecting}\n```sh\ncurl b\n```\n{left_alone}")
    assert (first.text, first.mark, first.value) == ("curl a\n", "expect", "404 409")
    assert (second.mark, second.is_script) == ("", True)
    assert (third.value, third.is_script) == ("needs root", False)


def test_nested_fence_is_not_a_block() -> None:
    [block] = blocks_of("````markdown\n```sh\nrm -r .\n```\n````\n")
    assert (block.is_script, block.is_program) == (False, False)


def test_example_answer_can_omit_fields() -> None:
    answer = {"topic": "a", "records": [{"$seq": 1, "$ts": 5, "data": 7}], "lag": 0}
    assert not list(differences({"records": [{"$seq": 1, "$ts": 99}]}, answer))
    assert list(differences({"records": [{"$seq": 2}]}, answer)) == ["answer.records[0].$seq is 1, the page shows 2"]
    assert list(differences({"caught_up": True}, answer)) == ["answer has no caught_up"]


def test_example_output_is_compared_whole() -> None:
    assert is_output("took … s\nend\n", "took 1.5 s  \nend\n\n")
    assert is_output("10:00:00.000 end\n", "12:34:56.789 end\n")
    assert not is_output("took … s\n", "took 1.5 s\nend\n")
    assert not is_output("a.c\n", "abc\n")


def test_example_output_can_have_any_order() -> None:
    assert is_output("     1  sent a\n     2  sent b\n", "     1  sent b\n     2  sent a\n", ordered=False)
    assert not is_output("     1  sent a\n     2  sent b\n", "     1  sent b\n     2  sent b\n", ordered=False)


PAGE = """
<!-- file: greet.py -->
```python
import sys
print("hello", sys.argv[1])
```

```sh
name=ada
python greet.py $name
```

<!-- output -->
```text
hello ada
```

```python
import os
import topics
print(os.environ["TOPICS_URL"], os.environ["name"])
```

<!-- output -->
```text
http://localhost:4000 ada
```

<!-- background -->
```sh
sleep 60 &
pid=$!
```

```sh
kill -0 $pid
```

```python
raise SystemExit(3)
```

<!-- output -->
```text
something else
```
"""


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    return tmp_path / "page.md"


def test_blocks_share_files_variables_and_background_processes(page: Path, tmp_path: Path) -> None:
    page.write_text(PAGE)
    reader = Reader(tmp_path / "reader", 4711, tmp_path / "data")
    try:
        problems = list(problems_of(page, reader))
    finally:
        reader.close()
    assert [problem.splitlines()[0] for problem in problems] == [
        "page.md:39: ended with 3: ", "page.md:44: the page shows",
    ]  # fmt: skip


def test_without_node_javascript_and_its_output_are_skipped(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.NODE", None)
    page.write_text(
        "```sh\necho shell\n```\n\n```js\nconsole.log(1)\n```\n\n<!-- output -->\n```text\n1\n```\n\n"
        "```sh\necho end\n```\n\n<!-- output -->\n```text\nwrong\n```\n"
    )
    [problem] = problems_of(page, Reader(tmp_path / "reader", 4711, tmp_path / "data"))
    assert problem.startswith("page.md:19: the page shows\nwrong")


@pytest.mark.skipif(NODE is None, reason="no Node found: it runs the JavaScript of the pages")
def test_javascript_block_imports_the_client(page: Path, tmp_path: Path) -> None:
    page.write_text(
        '```js\nimport { Topics } from "./topics.mjs"\nconsole.log(typeof Topics)\n```\n\n'
        "<!-- output -->\n```text\nfunction\n```\n\n```javascript\nawait missing()\n```\n"
    )
    [problem] = problems_of(page, Reader(tmp_path / "reader", 4711, tmp_path / "data"))
    assert problem.startswith("page.md:11: ended with 1: ")
    assert "missing is not defined" in problem


@needs_shell
@pytest.mark.parametrize("port", [4711, 40005])
def test_address_of_a_page_becomes_the_real_one(port: int, tmp_path: Path) -> None:
    text = Reader(tmp_path / "reader", port, tmp_path / "data").meant("localhost:4000 http://127.0.0.1:4000/v0")
    assert text == f"127.0.0.1:{port} http://127.0.0.1:{port}/v0"
