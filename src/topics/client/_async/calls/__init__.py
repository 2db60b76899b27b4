"""One module per group of calls. `client.py` joins them in one class."""
