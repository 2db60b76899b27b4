"""A real server under a service manager: what it says when it starts, reloads and stops."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import WAIT_S, ServerProcess


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    path = os.fspath(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        receiver.settimeout(WAIT_S)
        yield receiver


def until(receiver: socket.socket, wanted: str) -> list[str]:
    """Return the messages up to the first one that begins with `wanted`."""
    found: list[str] = []
    while not found or not found[-1].startswith(wanted):
        found.append(receiver.recv(1000).decode())
    return found


def test_server_reports_its_start_its_reload_its_stop_and_signs_of_life(manager: socket.socket, tmp_path: Path):
    variables = {"NOTIFY_SOCKET": os.fspath(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
    server = ServerProcess(tmp_path, {"data_dir": tmp_path / "data"}, variables=variables)
    assert set(until(manager, "READY=1")[:-1]) <= {"WATCHDOG=1"}
    until(manager, "WATCHDOG=1")
    until(manager, "WATCHDOG=1")
    server.process.send_signal(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in until(manager, "RELOADING=1")[-1]
    until(manager, "READY=1")
    server.process.send_signal(signal.SIGTERM)
    until(manager, "STOPPING=1")
    assert server.process.wait(WAIT_S) == 0
