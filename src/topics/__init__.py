"""topics: a persistent event engine for one machine, with a JSON API over HTTP."""

__version__ = "0.1.0"
