# Generated from _async/work/__init__.py by tools/unasync.py. Do not edit.
"""Jobs and those who do them: leases, loops over jobs, and workers."""
