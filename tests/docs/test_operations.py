"""The pages on formats and operations name what exists."""

import re
from pathlib import Path

from tools.docs.formats import reference
from topics.config import SETTINGS
from topics.server.limits.loop_holds import Cause


def test_formats_page_is_up_to_date():
    page = Path(__file__).parents[2] / "docs" / "formats.md"
    assert page.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_operations_page_names_existing_metrics_and_settings():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "operations.md").read_text() + (root / "docs" / "durability.md").read_text()
    assert set(re.findall(r"TOPICS_[A-Z_]+", text)) <= {row.variable for row in SETTINGS}
    api = root / "src" / "topics" / "server" / "api"
    source = "".join(path.read_text() for path in api.glob("*.py"))
    for name in set(re.findall(r"`(topics_[a-z_]+)`", text)):
        prefixes = ("", "topics_wal_", "topics_topic_", "topics_replica_")
        assert any(name.startswith(prefix) and name.removeprefix(prefix) in source for prefix in prefixes), name


def test_operations_page_explains_every_cause_of_a_hold():
    text = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = text.partition("### The longest holds")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == sorted(cause.value for cause in Cause)
