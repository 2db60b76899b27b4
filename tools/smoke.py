"""Install a wheel, an sdist or an npm package in a new place and try it: commands, the server, its files, and its data.

    python tools/smoke.py dist/*.whl dist/*.tar.gz dist/*.tgz
    python tools/smoke.py --every-python dist/*.whl

Each artifact is installed with its dependencies by constraints.txt, in a temporary directory outside the project, so
that nothing is imported from the sources. An npm package is installed in an empty directory, and tried with Node
against a server of this environment. The exit status is 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OLDEST = (3, 11)
NEWEST = (3, 14)
START_LIMIT_S = 60.0
# Files that are not Python and that the server must find in its package.
SERVED = {
    "/console": b"<!doctype html>", "/console/app.js": b"import", "/console/console.css": b"{", "/client.js": b"export",
    "/client.d.ts": b"export", "/v0/openapi.json": b'"openapi"', "/v0/metrics": b"topics_ready",
}  # fmt: skip
CLIENT = """
import sys
from topics.client import Topics
with Topics(sys.argv[1]) as topics:
    topics.append("smoke", {"from": "the client"})
    print([record.data for record in topics.read("smoke")])
"""

NODE_PROGRAM = """
import { Gap, Topics } from "topics-client"
const topics = new Topics(process.argv[2])
await topics.append("smoke", { from: "the package" })
for await (const item of topics.read("smoke")) console.log(item instanceof Gap, JSON.stringify(item.data))
"""


class Failed(Exception):
    """The artifact does not work. The text says what was tried."""


def interpreters() -> list[Path]:
    """Return one Python of each minor version from 3.11 on: from the PATH, pyenv, uv, and this one."""
    found: dict[tuple[int, int], Path] = {}
    names = [f"python3.{minor}" for minor in range(OLDEST[1], NEWEST[1] + 1)]
    candidates = [Path(sys.executable)]
    for pattern in ("~/.pyenv/versions/*/bin/python3", "~/.local/share/uv/python/*/bin/python3"):
        base, _, rest = pattern.partition("*")
        candidates += sorted(Path(base).expanduser().glob(f"*{rest}"))
    candidates += [Path(path) for name in names if (path := shutil.which(name))]
    for path in candidates:
        version = _version(path)
        if version is not None and OLDEST <= version <= NEWEST:
            found.setdefault(version, path)
    return [found[version] for version in sorted(found)]


def _version(python: Path) -> tuple[int, int] | None:
    command = [str(python), "-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return None
    major, minor = done.stdout.split()
    return int(major), int(minor)


def run(*command: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Run a command and return what it prints. Raise `Failed` if it fails."""
    words, place = [str(part) for part in command], cwd or Path(tempfile.gettempdir())
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=place, env=env)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"[:4000])
    return done.stdout


def clean_env() -> dict[str, str]:
    hidden = ("TOPICS_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}


def try_artifact(artifact: Path, python: Path) -> str:
    """Install the artifact for a Python and try it. Return a line about it. Raise `Failed`."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topics-smoke-", ignore_cleanup_errors=True) as path:
        room = Path(path)
        env = clean_env()
        run(python, "-m", "venv", room / "env", env=env)
        inside = room / "env" / "bin"
        install = [inside / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(*install, "-c", ROOT / "constraints.txt", f"{artifact}[client]", env=env)
        place = run(inside / "python", "-c", "import topics; print(topics.__file__)", env=env).strip()
        if not place.startswith(str(room)):
            raise Failed(f"topics is imported from {place}")
        version = run(inside / "topics", "--version", env=env).strip()
        for shell in ("bash", "zsh", "fish"):
            run(inside / "topics", "completion", shell, env=env)
        _try_server(inside, room / "data", env)
        run(inside / "topics", "verify", room / "data", env=env)
        shown = run(inside / "python", "--version", env=env).strip()
    return f"{artifact.name} on {shown}: {version} works ({time.monotonic() - started:.0f} s)"


def try_npm_package(artifact: Path) -> str:
    """Install the package in an empty directory and try it. Return a line about it. Raise `Failed`."""
    started = time.monotonic()
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Failed("it needs Node and npm")
    with tempfile.TemporaryDirectory(prefix="topics-smoke-") as path:
        room = Path(path)
        env = clean_env() | {"npm_config_cache": str(room / "cache")}
        (room / "package.json").write_text('{"private": true}')
        run(npm, "install", "--offline", "--no-audit", "--no-fund", artifact, env=env, cwd=room)
        installed = room / "node_modules" / "topics-client"
        package = json.loads((installed / "package.json").read_text())
        if missing := [place for place in package["exports"]["."].values() if not (installed / place).is_file()]:
            raise Failed(f"package.json names {', '.join(missing)}, which the package does not have")
        (room / "program.mjs").write_text(NODE_PROGRAM)
        with _server(Path(sys.executable).parent, room / "data", env) as url:
            printed = run(node, "program.mjs", url, env=env, cwd=room)
        if printed.strip() != 'false {"from":"the package"}':
            raise Failed(f"the JavaScript client read {printed}")
        shown = run(node, "--version", env=env).strip()
    return f"{artifact.name} on Node {shown}: {package['version']} works ({time.monotonic() - started:.0f} s)"


def _try_server(inside: Path, data_dir: Path, env: dict[str, str]) -> None:
    with _server(inside, data_dir, env) as url:
        _call(url, "/v0/topics/smoke", {"records": [{"data": {"n": 1}}], "config": {"durability": "fsync"}})
        for path, part in SERVED.items():
            body = _get(url + path)
            if part not in body.lower():
                raise Failed(f"{path} answered {body[:200]!r}")
        printed = run(inside / "python", "-c", CLIENT, url, env=env)
        if printed.strip() != "[{'n': 1}, {'from': 'the client'}]":
            raise Failed(f"the Python client read {printed}")
    with _server(inside, data_dir, env) as url:
        records = _call(url, "/v0/topics/smoke/diff", {"from_seq": 0})["records"]
        if [record["data"] for record in records] != [{"n": 1}, {"from": "the client"}]:
            raise Failed(f"after a restart the topic has {records}")


@contextmanager
def _server(inside: Path, data_dir: Path, env: dict[str, str]) -> Iterator[str]:
    """Run the server of the environment. Check that it stops with status 0."""
    port_file, log = data_dir.with_suffix(".port"), data_dir.with_suffix(".log")
    port_file.unlink(missing_ok=True)
    command = [
        str(inside / "topics"),
        "serve",
        "--port",
        "0",
        "--port-file",
        str(port_file),
        "--data-dir",
        str(data_dir),
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not (port_file.exists() and port_file.read_text().strip() and _is_ready(port_file)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
        process.send_signal(signal.SIGTERM)
        if status := process.wait(START_LIMIT_S):
            raise Failed(f"the server ended with {status}:\n{log.read_text()}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _is_ready(port_file: Path) -> bool:
    try:
        _get(f"http://127.0.0.1:{port_file.read_text().strip()}/v0/ready")
    except OSError:
        return False
    return True


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def _call(url: str, path: str, body: dict[str, Any]) -> Any:
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="+", type=Path)
    parser.add_argument("--every-python", action="store_true", help="try each Python from 3.11 on that is found")
    arguments = parser.parse_args(argv)
    pythons = interpreters() if arguments.every_python else [Path(sys.executable)]
    failed = False
    for artifact in map(Path.resolve, arguments.artifacts):
        is_npm = artifact.suffix == ".tgz"
        for python in pythons[:1] if is_npm else pythons:
            try:
                print(try_npm_package(artifact) if is_npm else try_artifact(artifact, python), flush=True)
            except Failed as problem:
                failed = True
                print(f"{artifact.name}{'' if is_npm else f' on {python}'}: {problem}", file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
