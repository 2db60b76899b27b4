"""The fenced blocks of a page, and the marks before them. tests/docs/README.md explains the marks."""

import re
from collections.abc import Iterator
from typing import NamedTuple

PROGRAMS = {"python": "python", "js": "js", "javascript": "js"}

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=ticks)\s*?$", re.DOTALL | re.MULTILINE
)
_MARK = re.compile(
    r"<!-- (?P<name>expect|not run|answer|output|file|background|terminal|slow)(?:: (?P<value>[^\n]*?))? -->\n\Z"
)
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
    def is_shown_output(self) -> bool:
        return self.mark == "output"

    @property
    def is_file(self) -> bool:
        return self.mark == "file"

    @property
    def is_program(self) -> bool:
        """Whether the block is a program in Python or JavaScript that runs as it is."""
        return self.language in PROGRAMS and self.mark not in ("not run", "file", "output")

    @property
    def is_script(self) -> bool:
        """Whether bash runs the block."""
        return self.language == "sh" and self.mark not in ("not run", "file", "output")


def blocks_of(text: str) -> Iterator[Block]:
    """Yield the blocks of a page in order."""
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        mark = _MARK.search(text, 0, fence.start())
        if mark is None:
            yield Block(fence["language"], fence["text"], line)
        else:
            yield Block(fence["language"], fence["text"], line, mark["name"], mark["value"] or "")


def settings_of(text: str) -> dict[str, object] | None:
    """Return the settings of the server of a page, or None if the page starts its own server."""
    found = _SERVER.search(text)
    if found and found[1] == "none":
        return None
    return dict(pair.split("=", 1) for pair in found[1].split()) if found else {}
