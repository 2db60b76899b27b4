"""The reference pages follow the route table, and describe every route, field and error."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tools.docs import openapi, reference
from topics.model.watch import Command
from topics.server.api.route_table import ROUTES

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference.pages()


def test_reference_pages_are_up_to_date(pages: dict[str, str]) -> None:
    assert {path.name: path.read_text() for path in DIRECTORY.glob("*")} == pages, "run `make docs`"


def test_index_links_every_route_to_its_section(pages: dict[str, str]) -> None:
    for route in ROUTES:
        if route.path in ("/healthz", "/readyz", "/metrics"):  # named in the section of the same probe below /v0
            assert f"Also at `{route.path}`." in pages["server.md"]
            continue
        title = f"{route.method} {route.path}"
        assert f"[`{title}`](" in pages["README.md"]
        assert sum(page.count(f"\n## {title}\n") for page in pages.values()) == 1, title


def test_section_has_every_parameter_field_and_error_of_its_route(pages: dict[str, str]) -> None:
    document = openapi.document(ROUTES)
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        text = _section(pages[f"{operation['tags'][0]}.md"], f"{route.method} {route.path}")
        if text is None:
            assert operation["operationId"].endswith("_at_root")
            continue
        named = [parameter["name"] for parameter in operation["parameters"]]
        for content in [operation.get("requestBody"), *operation["responses"].values()]:
            schema = (content or {}).get("content", {}).get("application/json", {}).get("schema", {})
            if "$ref" in schema and "ErrorAnswer" not in schema["$ref"]:
                named += document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
        named += [code.wire for code in openapi.described()[openapi.operation_name(route)].errors]
        assert [name for name in named if f"`{name}`" not in text] == [], route.path


def _section(page: str, title: str) -> str | None:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return found and found[1]


def test_every_websocket_command_has_a_section(pages: dict[str, str]) -> None:
    names = {kind.__struct_config__.tag for kind in Command.__args__}
    assert names <= set(re.findall(r"^### (\w+)$", pages["watch.md"], re.MULTILINE))


def test_every_field_of_an_event_or_a_message_has_a_meaning(pages: dict[str, str]) -> None:
    events = pages["watch.md"].partition("\n## Events\n")[2]
    rows = [line.split(" | ") for line in events.splitlines() if line.startswith("| `")]
    assert len(rows) > 80
    assert [row for row in rows if len(row[-1].strip("| ")) < 3] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": 1, "b": [1, 2]}, '{"a": 1, "b": [1, 2]}'),
        ({"long": "x" * 12, "b": 2}, '{"long": "xxxxxxxxxxxx",\n "b": 2}'),
        ({"a": 1, "b": 2, "c": [10, 20, 30]}, '{"a": 1, "b": 2,\n "c": [10, 20, 30]}'),
        ([], "[]"),
    ],
)
def test_json_is_broken_into_lines_that_fit(value: Any, text: str) -> None:
    assert reference.json_text(value, width=24) == text
    assert json.loads(text) == value
