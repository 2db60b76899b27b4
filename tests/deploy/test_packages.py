"""What `make dist` builds beside the wheel: image, npm package and formula; and the workflow that publishes them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import formula
from tools.image import build as image_build
from tools.image.layout import Entry, Image, Layout, read, unpack
from topics import RELEASE

ROOT = Path(__file__).parents[2]
WHEEL = "topics_engine-1.2.3-py3-none-any.whl"


def base(directory: Path, architecture: str = "amd64") -> Path:
    """Write an image of Python with one file."""
    (directory / "python").write_text("not really")
    target = directory / "base"
    layout = Layout(target, epoch_s=0)
    layer = layout.add_layer([Entry("usr/bin/python3", directory / "python", mode=0o755)])
    env = ["PATH=/usr/bin", "PYTHON_VERSION=3.12.1"]
    config: dict[str, Any] = {"architecture": architecture, "os": "linux", "config": {"Env": env, "Cmd": ["python3"]}}
    layout.finish(Image(config, [layer]), "base", {})
    return target


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, int], str]]:
    """Replace the download of packages. The Python and the machine that they are for are in the list."""
    targets: list[tuple[tuple[int, int], str]] = []

    def install(wheel: Path, target: Path, version: tuple[int, int], machine: str) -> None:
        targets.append((version, machine))
        (target / "topics").mkdir(parents=True)
        (target / "topics" / "__init__.py").write_text("RELEASE = 1\n")

    monkeypatch.setattr(image_build, "install", install)
    return targets


@pytest.fixture
def built(tmp_path: Path, installed: list[tuple[tuple[int, int], str]]) -> Path:
    (tmp_path / WHEEL).touch()
    os.utime(tmp_path / WHEEL, (1_800_000_000, 1_800_000_000))
    image_build.build(tmp_path / WHEEL, tmp_path / "image", base(tmp_path), "amd64")
    return tmp_path / "image"


def test_image_has_the_base_the_program_and_a_place_for_data(built: Path, tmp_path: Path) -> None:
    image = read(built, "amd64")
    (tmp_path / "root").mkdir()
    unpack(built, image, tmp_path / "root")
    names = {
        path.relative_to(tmp_path / "root").as_posix() for path in (tmp_path / "root").rglob("*") if path.is_file()
    }
    assert names == {
        "usr/bin/python3", "opt/topics/bin/topics", "opt/topics/healthcheck.py", "opt/topics/lib/topics/__init__.py"
    }  # fmt: skip
    [blob] = [built / "blobs/sha256" / row.descriptor["digest"].partition(":")[2] for row in image.layers[1:]]
    with tarfile.open(blob) as layer:
        owners = {info.name: (info.uid, info.mode, info.mtime) for info in layer}
    assert owners["var/lib/topics"] == (10001, 0o755, 1_800_000_000)
    assert owners["opt/topics/bin/topics"] == (0, 0o755, 1_800_000_000)


def test_every_blob_of_the_image_has_its_digest_and_size(built: Path) -> None:
    for blob in (built / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(blob.read_bytes()).hexdigest() == blob.name
    [row] = json.loads((built / "index.json").read_text())["manifests"]
    manifest = json.loads((built / "blobs/sha256" / row["digest"].partition(":")[2]).read_text())
    for described in (row, manifest["config"], *manifest["layers"]):
        assert (built / "blobs/sha256" / described["digest"].partition(":")[2]).stat().st_size == described["size"]
    assert row["annotations"]["org.opencontainers.image.ref.name"] == "1.2.3"


def test_image_has_the_settings_of_the_dockerfile(built: Path) -> None:
    text = re.sub(r"\\\n\s*", "", (ROOT / "deploy" / "Dockerfile").read_text()).rpartition("\nFROM ")[2]
    steps = dict(line.split(maxsplit=1) for line in text.splitlines() if re.match(r"[A-Z]+ ", line))
    config = read(built, "amd64").config["config"]
    variables = dict(variable.split("=", 1) for variable in config["Env"])
    wanted = dict(re.findall(r"(TOPICS_\w+)=(\S+)", steps["ENV"]))
    assert wanted
    assert {name: value for name, value in variables.items() if name.startswith("TOPICS_")} == wanted
    assert variables["PATH"] == "/opt/topics/bin:/usr/bin"
    assert config["User"].partition(":")[0] == steps["USER"]
    assert [*config["Volumes"]] == [steps["VOLUME"]]
    assert [*config["ExposedPorts"]] == [f"{steps['EXPOSE']}/tcp"]
    assert config["StopSignal"] == steps["STOPSIGNAL"]
    assert config["Cmd"] == json.loads(steps["CMD"])
    options, _, command = steps["HEALTHCHECK"].partition(" CMD ")
    assert config["Healthcheck"]["Test"] == ["CMD", *json.loads(command)]
    seconds = {name: int(value) for name, value in re.findall(r"--(\S+)=(\d+)s", options)}
    written = {name: config["Healthcheck"][name] // 1_000_000_000 for name in ("Interval", "Timeout", "StartPeriod")}
    assert [*written.values()] == [seconds["interval"], seconds["timeout"], seconds["start-period"]]


def test_packages_of_the_image_are_those_of_its_python_and_machine(
    installed: list[tuple[tuple[int, int], str]], tmp_path: Path
) -> None:
    (tmp_path / WHEEL).touch()
    image_build.build(tmp_path / WHEEL, tmp_path / "image", base(tmp_path, "arm64"), "arm64")
    assert installed == [((3, 12), "aarch64")]


def test_same_wheel_gives_the_same_image(built: Path, tmp_path: Path) -> None:
    image_build.build(tmp_path / WHEEL, tmp_path / "again", tmp_path / "base", "amd64")
    assert (tmp_path / "again" / "index.json").read_text() == (built / "index.json").read_text()


def test_damaged_layer_and_missing_architecture_are_errors(built: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no image for arm64"):
        read(built, "arm64")
    image = read(built, "amd64")
    blob = built / "blobs/sha256" / image.layers[0].descriptor["digest"].partition(":")[2]
    blob.write_bytes(blob.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="differs from its digest"):
        unpack(built, image, tmp_path)


@pytest.mark.torture
@pytest.mark.skipif(platform.system() != "Linux" or os.geteuid() != 0, reason="only root can change the root directory")
def test_image_runs_without_a_container_engine(tmp_path: Path) -> None:
    wheel = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(wheel, check=True, capture_output=True)
    [found] = tmp_path.glob("*.whl")
    for module, *arguments in (("build", str(found), str(tmp_path / "image")), ("smoke", str(tmp_path / "image"))):
        command = [sys.executable, "-m", f"tools.image.{module}", *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "works as user 10001:10001" in done.stdout


def test_version_of_the_npm_package_is_that_of_the_release() -> None:
    package = json.loads((ROOT / "clients" / "js" / "package.json").read_text())
    release, _, dev = RELEASE.partition(".dev")
    assert package["version"] == (f"{release}-dev.{dev}" if dev else release)


def test_formula_names_the_sdist_and_its_checksum(tmp_path: Path) -> None:
    sdist = tmp_path / "topics_engine-1.2.3.tar.gz"
    sdist.write_bytes(b"an sdist")
    text = formula.formula(sdist, "https://topics.example/files/", "https://topics.example")
    assert f'url "https://topics.example/files/{sdist.name}"' in text
    assert f'sha256 "{hashlib.sha256(b"an sdist").hexdigest()}"' in text
    assert "@" not in text.replace("python@3.13", "")
    with pytest.raises(ValueError, match="is not an sdist"):
        formula.formula(tmp_path / WHEEL, "https://topics.example", "")
    if shutil.which("ruby"):
        (tmp_path / "topics-engine.rb").write_text(text)
        subprocess.run(["ruby", "-c", tmp_path / "topics-engine.rb"], check=True, capture_output=True)


def test_release_publishes_what_was_tried() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    commands = "\n".join(step.get("run", "") for step in build["steps"])
    assert "make dist" in commands
    assert publish["needs"] == "build"
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= set(targets)
    for place in re.findall(r"dist/[\w.*-]+", "\n".join(step.get("run", "") for step in publish["steps"])):
        assert place in (
            "dist/*.whl",
            "dist/*.tar.gz",
            "dist/*.tgz",
            "dist/topics-engine.rb",
            "dist/image",
            "dist/image-arm64",
        )


def test_kustomization_names_existing_files() -> None:
    base = yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())
    assert [name for name in base["resources"] if not (ROOT / "deploy" / name).is_file()] == []
