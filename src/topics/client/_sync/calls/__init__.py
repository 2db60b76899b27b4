# Generated from _async/calls/__init__.py by tools/unasync.py. Do not edit.
"""One module per group of calls. `client.py` joins them in one class."""
