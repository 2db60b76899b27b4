"""Run an image of `tools.image.build` without a container engine: its files are the root directory of a process.

    python -m tools.image.smoke dist/image

It needs root, for chroot, and says so if it cannot try the image. It checks that the server starts as user 10001 on a
root directory of another user, answers, passes its own health check, over TLS too, and ends with 0 on SIGTERM. The exit
status is 1 if something fails.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tools.image.layout import read, unpack

START_LIMIT_S = 60.0
KEY = "0123456789abcdef"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Room:
    """The files of an image in a directory, and processes that have it as their root."""

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        self._root = root
        self._config = config
        self._user = int(config["User"].partition(":")[0])
        self._env = dict(variable.split("=", 1) for variable in config["Env"])
        for name, mode in (("tmp", 0o1777), ("run/secrets", 0o755)):
            (root / name).mkdir(parents=True, exist_ok=True)
            (root / name).chmod(mode)
        self.write("run/secrets/topics-api-keys", f"{KEY}:read+write+admin\n".encode())

    def write(self, name: str, data: bytes) -> None:
        (self._root / name).write_bytes(data)

    def read(self, name: str) -> str:
        path = self._root / name
        return path.read_text() if path.exists() else ""

    def start(self, command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command of the image with its variables and `env`. It listens on the loopback address."""
        whole = self._env | {"TOPICS_HOST": "127.0.0.1"} | env
        program = shutil.which(command[0], path=":".join(f"{self._root}{part}" for part in whole["PATH"].split(":")))
        if program is None:
            raise SystemExit(f"the image has no {command[0]}")
        argv = [program.removeprefix(str(self._root)), *command[1:]]
        log = (self._root / "tmp" / "log").open("ab")
        return subprocess.Popen(argv, env=whole, stdout=log, stderr=log, preexec_fn=self._enter())

    def serve(self, env: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
        """Start the server of the image. Return it and its port when it is ready."""
        (self._root / "tmp" / "port").unlink(missing_ok=True)
        words = [*self._config["Entrypoint"], *self._config["Cmd"]]
        process = self.start([*words, "--port", "0", "--port-file", "/tmp/port"], env)
        deadline = time.monotonic() + START_LIMIT_S
        while not (port := self.read("tmp/port").strip()) or not self.is_healthy(int(port), env):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise SystemExit(f"the server did not start:\n{self.read('tmp/log')}")
            time.sleep(0.05)
        return process, int(port)

    def is_healthy(self, port: int, env: Mapping[str, str]) -> bool:
        words = self._config["Healthcheck"]["Test"][1:]
        return self.start(words, {**env, "TOPICS_PORT": str(port)}).wait(START_LIMIT_S) == 0

    def _enter(self) -> Callable[[], None]:
        def enter() -> None:
            os.chroot(self._root)
            os.chdir(self._config["WorkingDir"])
            os.setgroups([])
            os.setgid(self._user)
            os.setuid(self._user)

        return enter


def stop(process: subprocess.Popen[bytes], room: Room) -> None:
    process.send_signal(signal.SIGTERM)
    if status := process.wait(START_LIMIT_S):
        raise SystemExit(f"the server ended with {status}:\n{room.read('tmp/log')}")


def append_and_count(port: int) -> int:
    """Append a record with the key of the room. Return the number of records."""
    url = f"http://127.0.0.1:{port}/v0/topics/smoke"
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, b'{"records": [{"data": 1}]}', headers), timeout=30):
        pass
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
        return int(json.load(answer)["count"])


def certificate(directory: Path) -> bytes:
    """Return a certificate for another name, with its key, as a container behind a service has it."""
    paths = ["-keyout", str(directory / "key"), "-out", str(directory / "cert")]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *paths]
    subprocess.run([*command, "-days", "1", "-subj", "/CN=topics.example"], check=True, capture_output=True)
    return (directory / "cert").read_bytes() + (directory / "key").read_bytes()


def main(argv: list[str]) -> int:
    [layout] = map(Path, argv)
    if os.geteuid() != 0:
        print(f"{layout} was NOT tried: only root can change the root directory of a process")
        return 0
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topics-image-") as path:
        root = Path(path, "root")
        root.mkdir(mode=0o755)
        Path(path).chmod(0o755)
        image = read(layout, ARCHITECTURES[platform.machine()])
        unpack(layout, image, root)
        room = Room(root, image.config["config"])
        process, port = room.serve({})
        if (count := append_and_count(port)) != 1:
            raise SystemExit(f"the topic has {count} records instead of 1")
        if room.is_healthy(1, {}):
            raise SystemExit("the health check accepts a server that does not run")
        stop(process, room)
        room.write("tmp/cert.pem", certificate(Path(path)))
        stop(room.serve({"TOPICS_TLS_CERT": "/tmp/cert.pem"})[0], room)
    print(f"{layout} works as user {image.config['config']['User']} ({time.monotonic() - started:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
