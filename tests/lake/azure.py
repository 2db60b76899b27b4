"""An emulator of Azure's object store on this machine, installed from npm."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

AZURITE = "azurite@3.35.0"
CONTAINER = "lake"
# The account of every such emulator.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_S = 60


def azurite() -> Path:
    """Return the program, installed once per machine. Skip if it cannot be had."""
    folder = Path(tempfile.gettempdir()) / f"topics-test-{AZURITE}-{os.getuid()}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed: it is needed for the emulator")
        install = ["npm", "install", "--silent", "--prefix", str(folder), AZURITE]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{AZURITE} cannot be installed: {done.stderr.strip()[-200:]}")
    return program


@contextmanager
def azure_store(folder: Path) -> Iterator[dict[str, str]]:
    """Run an emulator with one container. Yield the settings that a client needs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [str(azurite()), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with (folder / "azure-log").open("wb") as log:
        process = subprocess.Popen([*command, "--blobPort", str(port)], stdout=log, stderr=log)
    try:
        create_container(port, process)
        yield {
            "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        }  # fmt: skip
    finally:
        process.kill()
        process.wait()


def create_container(port: int, process: subprocess.Popen[bytes]) -> None:
    date = email.utils.formatdate(usegmt=True)
    fields = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    named = "".join(f"{name}:{value}\n" for name, value in fields.items())
    signed = f"PUT{chr(10) * 12}{named}/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    fields["authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "the emulator has ended"
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers=fields)
            assert connection.getresponse().status == 201
            return
        except OSError:
            assert time.monotonic() < deadline, "the emulator does not answer"
            time.sleep(0.05)
        finally:
            connection.close()
