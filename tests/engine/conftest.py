import os

from hypothesis import settings

# A failure seen by one run must be seen by the next: in CI the same histories are tried every time.
settings.register_profile("topics", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("topics")
