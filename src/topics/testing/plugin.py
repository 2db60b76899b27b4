"""Fixtures for pytest: installed with the package, found by pytest through its entry point."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.testing import server


@pytest.fixture
def topics_server() -> Iterator[str]:
    """Yield the URL of a real server in memory, which runs during the test."""
    with server() as url:
        yield url
