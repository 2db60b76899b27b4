"""Python clients. `Client` is the blocking one. `request` encodes requests and decodes answers, without I/O."""

from topics.client.sync import Client

__all__ = ["Client"]
