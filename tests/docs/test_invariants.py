"""The page of invariants names code and tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "src" / "topics", ROOT / "tests")


@cache
def names(path: Path) -> set[str]:
    """Return the functions, classes, methods and constants of a module."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_page_names_existing_code_and_tests() -> None:
    text = (ROOT / "docs/invariants.md").read_text()
    references = re.findall(r"`(?:tests/)?([\w/]+\.py)(?:::([\w.]+))?`", text)
    assert len(references) > 100
    missing = []
    for file, name in references:
        paths = [folder / file for folder in FOLDERS if (folder / file).is_file()]
        if not paths or (name and name not in names(paths[0])):
            missing.append((file, name))
    assert missing == []


def test_every_row_names_a_test() -> None:
    rows = [line for line in (ROOT / "docs/invariants.md").read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| invariant")]
    assert len(rows) > 40
    assert [row for row in rows if not re.search(r"\btest_\w+", row.split("|")[3])] == []
