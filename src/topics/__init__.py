"""topics: a persistent event engine for one machine, spoken to in JSON over HTTP."""

__version__ = "0.1.0"
