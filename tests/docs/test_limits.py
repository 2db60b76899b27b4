"""The limits on docs/sizing.md are the defaults of the settings."""

import re
from pathlib import Path

from topics.config import Settings

TEXT = (Path(__file__).parents[2] / "docs" / "sizing.md").read_text()
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


def test_limits_of_the_sizing_page_are_the_defaults() -> None:
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| (`TOPICS_[^|]+) \|$", TEXT, re.MULTILINE)
    assert len(rows) >= 15
    for shown, settings in rows:
        names = re.findall(r"`([^`]+)`", settings)
        values = [_number(text) for text in re.findall(r"\d[\d,]*(?: [KM]iB)?", shown)]
        for at, name in enumerate(names):
            name = names[0] + name.removeprefix("…") if name.startswith("…") else name
            default = getattr(Settings, name.removeprefix("TOPICS_").lower())
            assert default in ((values[at],) if values else (0, None)), name


def _number(text: str) -> int:
    digits, _, unit = text.partition(" ")
    return int(digits.replace(",", "")) * UNITS.get(unit, 1)
