"""The groups of tests that share a Spark session or a browser: a worker must run all of a group."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="one process runs all tests")
@pytest.mark.xdist_group("groups")
def test_workers_know_the_group_of_a_test(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@groups")
