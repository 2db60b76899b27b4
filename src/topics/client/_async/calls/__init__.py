"""One module per group of calls, and `AsyncJob`, which a claim returns. `client.py` joins the calls in one class."""
