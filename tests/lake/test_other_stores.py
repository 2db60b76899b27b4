"""A lake in the object stores of other makers, in emulators on this machine."""

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
from pathlib import Path

import polars as pl
import pytest

from tests.lake.making import archive, archived_epoch_of, check_content, commit_first, erase, known, merge
from tests.lake.object_store import BUCKET, google_settings, object_store
from topics.lake import Conflict, Lake

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


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of an emulator with one container."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    command = [str(azurite()), "--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    with (tmp_path_factory.mktemp("azure") / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--blobPort", str(port)], stdout=log, stderr=log)
    try:
        create_container(port, process)
        yield port
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


@pytest.mark.torture
def test_lake_in_azure_is_archived_merged_erased_and_read_by_others(azure: int, monkeypatch: pytest.MonkeyPatch):
    options = {
        "AZURE_STORAGE_USE_EMULATOR": "true", "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{azure}",
        "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY,
    }  # fmt: skip
    play(f"az://{CONTAINER}/shop", options, monkeypatch)


def test_lake_at_google_is_archived_merged_erased_and_read_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with object_store(tmp_path) as store:
        play(f"gs://{BUCKET}/shop", google_settings(store.url), monkeypatch)


def play(location: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change a lake in every way, with conflicts, and read it again."""
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    lake = Lake(location)
    lake.create()
    for at in range(4):
        archive(lake, "a", 1 + 10 * at, 10 + 10 * at, lost=2)
    base = lake.table("a").state()
    with monkeypatch.context() as other_run:
        commit_first(other_run, lambda: archive(Lake(lake.path), "a", 41, 50))
        with pytest.raises(Conflict):
            archive(lake, "a", 41, 60)
    with pytest.raises(Conflict):
        archive(Lake(lake.path), "a", 41, 50, base=base)
    assert merge(lake, "a", min_files=2) == 5
    assert erase(lake, "t1", topics=["a"]) > 0
    lake.table("a").vacuum(retention_hours=0)
    left = [seq for seq in range(1, 51) if (seq > 40 or seq % 10 not in (1, 2)) and seq % 3 != 1]
    fresh = Lake(lake.path)
    assert known(fresh) == [("a", seq) for seq in left]
    assert [gap.first for gap in archived_epoch_of(fresh).gaps] == [1, 11, 21, 31]
    assert sorted(pl.read_delta(f"{lake.path}/a", storage_options=options)["seq"].to_list()) == left
    check_content(fresh, "a")
