"""Clients. `Client` is the blocking one; what is sent and what answers mean is in `request`, without any I/O."""

from topics.client.sync import Client

__all__ = ["Client"]
