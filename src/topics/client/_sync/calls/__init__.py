# Generated from _async/calls/__init__.py by tools/unasync.py. Do not edit.
"""One module per group of calls, and `Job`, which a claim returns. `client.py` joins the calls in one class."""
