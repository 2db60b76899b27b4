"""The JavaScript client, in Node, against a real server."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ServerProcess

HERE = Path(__file__).parent / "js"
CLIENT = Path(__file__).parents[2] / "clients" / "js"

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no Node found: it runs the JavaScript tests")


@needs_node
def test_every_verb_works_in_node(server: ServerProcess, tmp_path: Path) -> None:
    assert NODE is not None
    command = [NODE, "--experimental-websocket", "--test", str(HERE / "suite.mjs")]
    env = os.environ | {"TOPICS_URL": server.url, "TMP_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_node
def test_several_addresses_in_node() -> None:
    assert NODE is not None
    done = subprocess.run([NODE, "--test", str(HERE / "addresses.mjs")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_node
def test_package_holds_the_module_and_its_types(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm found")
    done = subprocess.run(
        [npm, "pack", "--dry-run", "--json"], cwd=CLIENT, capture_output=True, text=True, check=True,
        env=os.environ | {"npm_config_cache": str(tmp_path)},
    )  # fmt: skip
    for name in ("topics.js", "topics.d.ts", "package.json"):
        assert f'"{name}"' in done.stdout


@pytest.mark.torture
@needs_node
def test_types_fit_a_typescript_program(tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm found")
    install = [npm, "install", "--no-fund", "--no-audit", "--prefix", str(tmp_path), "typescript@5"]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    compiler = tmp_path / "node_modules" / ".bin" / "tsc"
    flags = ["--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2023,dom,dom.iterable"]
    done = subprocess.run([compiler, "--noEmit", *flags, HERE / "sample.mts"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    compared = subprocess.run(
        [NODE or "node", HERE / "options.cjs", tmp_path / "node_modules" / "typescript"], capture_output=True, text=True
    )
    assert (compared.returncode, compared.stdout) == (0, ""), compared.stdout + compared.stderr
    subprocess.run([compiler, "-p", CLIENT, "--outDir", tmp_path / "out"], check=True, capture_output=True)
    assert (tmp_path / "out" / "topics.d.ts").read_text() == (CLIENT / "topics.d.ts").read_text(), "stale types"
