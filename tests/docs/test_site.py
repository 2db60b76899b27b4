"""The staging of the documentation site: every page is in the navigation, and every link leads to a staged file.

`make site` builds the site itself. That takes longer than a test should, so it is a step of `make check` and `.ci/run`.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.browser import Site, dump_dom, needs_browser
from tests.cli.terminal import Cli
from tests.conftest import ServerProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "tools/site/build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entries(text: str) -> list[str]:
    """Return the pages that the navigation of a page names."""
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    return [line.partition(" <")[2].removesuffix(">") or line for line in lines]


def test_every_page_is_in_the_navigation_once(site: ModuleType, tmp_path: Path) -> None:
    site.stage_pages(ROOT, tmp_path)
    named = []
    for page in tmp_path.rglob("*.md"):
        here = page.parent.relative_to(tmp_path)
        named += [(here / entry).as_posix() + ".md" for entry in entries(page.read_text())]
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.md") if "files/" not in str(page)}
    assert sorted(named) == sorted(pages - {"index.md"})
    others = [page for page in (tmp_path / site.FILES).rglob("*.md") if not page.read_text().startswith(site.ORPHAN)]
    assert not others, "Sphinx refuses a page that is neither in the navigation nor marked"


def test_every_link_of_a_staged_page_leads_to_a_staged_file(site: ModuleType, tmp_path: Path) -> None:
    site.stage_pages(ROOT, tmp_path)
    broken = []
    for page in tmp_path.rglob("*.md"):
        text = site._CODE.sub("``", page.read_text())
        for link in re.findall(r"\]\(([^()\s#]+)", text):
            if "://" not in link and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(tmp_path)}: {link}")
    assert broken == []


def small_project(root: Path) -> Path:
    for name, text in {
        "README.md": "# It\n\n[the license](LICENSE), [docs](docs/README.md), [a](docs/a.md#part)\n",
        "LICENSE": "free\n",
        "docs/README.md": "# Docs\n\n## Guide\n\n|||\n|---|---|\n| [README](../README.md) ||\n| [First](a.md) | 1 |\n",
        "docs/a.md": "# A page\n\n## Part\n\n[home](../README.md) [all](../deploy) `[no](link.md)`\n",
        "docs/recipes/README.md": "# Recipes\n",
        "docs/recipes/one.md": "# One\n\n[a](../a.md)\n",
        "docs/new/other.md": "# Other\n",
        "deploy/unit.service": "[Unit]\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_page_that_no_table_names_joins_the_section_of_its_folder(site: ModuleType, tmp_path: Path) -> None:
    root = small_project(tmp_path / "project")
    sections = site.find_sections(root, site.find_pages(root))
    assert sections == {
        "Start": ["docs/README.md", "docs/recipes/README.md"],
        "Guide": ["docs/a.md", "docs/new/other.md"],
    }
    site.stage_pages(root, tmp_path / "staged")
    assert entries((tmp_path / "staged/recipes/index.md").read_text()) == ["one"]
    assert "First <a>" in (tmp_path / "staged/index.md").read_text()


def test_links_out_of_docs_are_rewritten_and_code_is_not(site: ModuleType, tmp_path: Path) -> None:
    root, staged = small_project(tmp_path / "project"), tmp_path / "staged"
    site.stage_pages(root, staged)
    start = (staged / "index.md").read_text()
    assert "[the license](files/LICENSE), [docs](contents.md), [a](a.md#part)" in start
    assert (staged / "files/LICENSE").read_text() == "free\n"
    assert "[home](index.md) [all](files/deploy.md) `[no](link.md)`" in (staged / "a.md").read_text()
    assert "[unit.service](deploy/unit.service)" in (staged / "files/deploy.md").read_text()
    assert (staged / "files/deploy/unit.service").exists()
    assert "[a](../a.md)" in (staged / "recipes/one.md").read_text()


def test_page_that_asks_another_host_is_found(site: ModuleType, tmp_path: Path) -> None:
    for name, text in {
        "font.css": "@import url(https://fonts.example/a.css);",
        "script.html": '<script defer src="//cdn.example/a.js"></script>',
        "style.html": '<link rel="stylesheet" href="https://cdn.example/a.css">',
        "fine.html": '<a href="https://example.org">x</a><link rel="stylesheet" href="a.css"><img src="b.png">',
    }.items():
        (tmp_path / name).write_text(text)
    assert site.external_requests(tmp_path) == ["font.css", "script.html", "style.html"]


def test_first_screen_of_the_site_shows_what_its_commands_print(site: ModuleType, tmp_path: Path) -> None:
    first = site._first_screen(ROOT)
    assert first.startswith("# topics\n\n`````{container} hero")
    assert "\n## Start\n" in first
    [[commands, shown]] = re.findall(r"```sh\n(curl.*?)```\n```text\n(.*?)```", first, re.DOTALL)
    server = ServerProcess(tmp_path, {})
    *writes, read = commands.replace("localhost:4000", f"127.0.0.1:{server.port}").rstrip().splitlines()
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TOPICS_URL": server.url}
    subprocess.run(["bash", "-ec", "\n".join(writes)], env=environment, capture_output=True, check=True, timeout=60)
    done = Cli(tmp_path / "home", server.url).tty(*read.split()[1:])
    plain = [re.sub(r"\d\d:\d\d:\d\d\.\d{3}", "TIME", text) for text in (done.out.replace("\r", ""), shown)]
    assert plain[0].split() == plain[1].split()
    server.stop()


RESULT = """
<div role="main"><h1>Queues</h1><p>A release is a version.
Workers lease jobs, e.g. with <code>topics.client</code>. Yes.</p>
<table><tr><td>lease</td><td>how long a lease is, in ms</td></tr></table><pre>lease = 1</pre>
<section id="part"><p>A key orders its jobs.</p><ul><li>Short lease.</li></ul></section></div>"""


@needs_browser
def test_summary_of_a_search_result_is_a_sentence(tmp_path: Path) -> None:
    script = (ROOT / "tools/site/static/site.js").read_text()
    asked = [("['lease']", "null"), ("['nothing']", "null"), ("['key']", "'#part'"), ("['job', 'leas']", "null")]
    calls = ", ".join(
        f"Search.makeSearchSummary(html, new Set({words}), {anchor}).textContent" for words, anchor in asked
    )
    with Site(lambda _: None) as site:
        site.page = f"""<body><script>{script}</script><script>const Search = {{}}; const html = {RESULT!r}
            addEventListener("DOMContentLoaded", () => document.body.textContent = [{calls}].join("|"))</script>"""
        shown = dump_dom(site.origin, tmp_path)
    assert [text.split("<")[0] for text in shown.split("<body>")[1].split("|")] == [
        "Workers lease jobs, e.g. with topics.client.", "A release is a version.", "A key orders its jobs.",
        "Workers lease jobs, e.g. with topics.client.",
    ]  # fmt: skip
