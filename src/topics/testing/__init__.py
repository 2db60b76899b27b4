"""For tests of programs that use topics: `server`, a real server in memory. Nothing in the package imports this."""

from topics.testing.server import server as server

__all__ = ["server"]
