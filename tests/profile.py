"""How Hypothesis runs here: whatever a machine's speed, and in CI with the same examples every time."""

import os

from hypothesis import settings


def load() -> None:
    settings.register_profile("topics", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
    settings.load_profile("topics")
