# Generated from _async/work/__init__.py by tools/unasync.py. Do not edit.
"""Work on jobs: workers, loops over jobs, and the extension of their leases."""
