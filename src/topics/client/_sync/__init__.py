"""The sync client: generated from `_async` by `tools/unasync.py`, except for `tools.py`. Do not edit."""
