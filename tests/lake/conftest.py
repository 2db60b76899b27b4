"""Lakes without a server and without Spark."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("pyarrow") else ["test_*.py"]

if find_spec("pyarrow"):
    from topics.lake import Lake

    @pytest.fixture
    def lake(tmp_path: Path) -> Lake:
        made = Lake(str(tmp_path / "lake"))
        made.create()
        return made
