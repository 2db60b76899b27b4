from tests.contract.conftest import api, connect, session_api, topic

__all__ = ["api", "connect", "session_api", "topic"]
