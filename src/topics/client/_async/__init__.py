"""The async client. `tools/unasync.py` generates the sync client in `_sync` from these files."""
