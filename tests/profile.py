"""Hypothesis profiles: no deadlines, and the same examples in every CI run."""

import os

from hypothesis import settings


def load() -> None:
    settings.register_profile("topics", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
    settings.load_profile("topics")
