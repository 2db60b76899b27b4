"""Fixtures for pytest: installed with the package, found by pytest through its entry point."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from topics.testing.server import server


@pytest.fixture
def topics_server() -> Iterator[str]:
    """The URL of a real server in memory that lives as long as the test."""
    with server() as url:
        yield url
