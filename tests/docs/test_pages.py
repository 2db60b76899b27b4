"""Generated pages are up to date, tables match the code, and links have a target."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import blocks_of
from tools.docs import errors as errors_doc
from tools.docs.openapi import TEXTS
from topics.errors import Code
from topics.model.topic import TopicConfig

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_CODE = re.compile(r"^(`{3,}).*?^\1\s*?$|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def test_errors_page_is_up_to_date() -> None:
    assert (ROOT / "docs/guide/errors.md").read_text() == errors_doc.page(), "run `make docs`"


def test_benchmark_page_has_the_newest_results() -> None:
    done = subprocess.run([sys.executable, "bench/page.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sizing_page_has_the_marks_of_its_tables() -> None:
    marks = re.findall(r'"(<!-- .*? -->)"', (ROOT / "bench/sizing.py").read_text())
    page = (ROOT / "docs/sizing.md").read_text()
    assert len(marks) == 4
    assert sorted(marks, key=page.index) == marks


def test_every_error_code_has_an_explanation() -> None:
    assert list(TEXTS["errors"]) == list(Code)


def test_topics_page_lists_every_field_with_its_default() -> None:
    text = (ROOT / "docs/guide/topics.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", text.partition("### Every field")[2], re.MULTILINE))
    defaults = {"null": None, "true": True, "false": False, "[]": ()}
    shown = {name: rows[name].removesuffix(", off") for name in TopicConfig.__struct_fields__}
    for name, default in zip(TopicConfig.__struct_fields__, TopicConfig.__struct_defaults__, strict=True):
        value = shown[name].strip("`")
        assert defaults.get(value, value.strip('"')) in (default, str(default)), name


def test_tutorial_shows_the_programs_of_the_shop() -> None:
    shown = {block.value: block.text for block in blocks_of((ROOT / "docs/tutorial.md").read_text()) if block.is_file}
    assert shown == {path.name: path.read_text() for path in (ROOT / "examples" / "shop").iterdir()}


def test_architecture_page_names_existing_modules() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    named = set(re.findall(r"`((?:cli|client|engine|lake|model|server|spark|storage|testing)/[\w/]*)`", text))
    package = ROOT / "src" / "topics"
    assert len(named) > 30
    assert [
        name for name in sorted(named) if not ((package / name).is_dir() or (package / f"{name}.py").is_file())
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    links = [link for link in _LINK.findall(_CODE.sub("``", page.read_text())) if "://" not in link]
    assert [link for link in links if not _leads_somewhere(page, link)] == []


def _leads_somewhere(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or heading in _anchors(target))


def _anchors(page: Path) -> set[str]:
    """Return the anchors of the headings, as code hosts generate them."""
    headings = _HEADING.findall(re.sub(r"^(`{3,}).*?^\1\s*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
