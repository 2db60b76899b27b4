"""Messages to systemd, or another service manager with its protocol: ready, reloading, stopping, and signs of life.

Signs of life come from the event loop, so a manager with a watchdog restarts a server whose loop hangs.
"""

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class ServiceManager:
    """Sends nothing if no manager asks for it (`NOTIFY_SOCKET`, `WATCHDOG_USEC`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, environ: Mapping[str, str] = os.environ) -> None:
        self._loop = loop
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path  # an abstract name
        period_us = environ.get("WATCHDOG_USEC", "0")
        if self._address and period_us.isdigit() and environ.get("WATCHDOG_PID", "") in ("", str(os.getpid())):
            self._beat_s = int(period_us) / 2e6
            if self._beat_s:
                self._beat()

    def ready(self) -> None:
        self._send("READY=1")

    def reloading(self) -> None:
        """Say that settings are read again. `ready` follows."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _beat(self) -> None:
        self._send("WATCHDOG=1")
        self._loop.call_later(self._beat_s, self._beat)

    def _send(self, message: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(message.encode(), self._address)
