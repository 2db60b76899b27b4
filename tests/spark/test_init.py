"""`topics pipeline init`: a project that runs as it is, and never writes over another."""

from __future__ import annotations

import compileall
import sys
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.spark.processes import Process, slim_home
from topics.cli.main import main
from topics.client import Client
from topics.client.request import Record


def run(project: Path, log: Path) -> None:
    """As its README says, but for what makes it quick."""
    tool = str(Path(sys.executable).with_name("spark-pipelines"))
    command = [tool, "run", "--spec", str(project / "spark-pipeline.yml")]
    command += ["--conf", "spark.ui.enabled=false", "--conf", f"spark.sql.warehouse.dir={log.parent / 'warehouse'}"]
    running = Process(command, log, SPARK_HOME=slim_home(log.parent))
    try:
        running.succeed()
    finally:
        running.kill()


def items(client: Client, topic: str) -> list[str]:
    return [item.value["item"] for item in client.read(topic) if isinstance(item, Record)]


def order(client: Client, topic: str, item: str, total: float) -> None:
    # With a key, since a connection that was idle during a slow run may be closed: the write can then be sent again.
    client.append(topic, [{"data": {"item": item, "total": total}, "tag": item}], idempotency_key=item)


@pytest.mark.torture
def test_the_project_runs_as_it_was_made(server: ServerProcess, client: Client, topic: str, tmp_path: Path):
    pytest.importorskip("pandas")
    pytest.importorskip("grpc")
    project = tmp_path / "my shop"
    assert main(["pipeline", "init", str(project), "--url", server.url, "--topic", topic]) == 0
    order(client, topic, "mug", 9)
    order(client, topic, "roaster", 480)
    run(project, tmp_path / "log")
    assert items(client, f"{topic}.large") == ["roaster"]


@pytest.mark.torture
def test_every_run_takes_up_what_has_come_since_the_last(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
):
    project = tmp_path / "shop"
    assert (
        main(["pipeline", "init", str(project), "--url", server.url, "--topic", topic, "--into", f"{topic}.out"]) == 0
    )
    run(project, tmp_path / "log")  # before there is a topic
    for item in ("roaster", "grinder"):
        order(client, topic, item, 480)
        run(project, tmp_path / "log")
    assert items(client, f"{topic}.out") == ["roaster", "grinder"]


def test_what_is_made_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["pipeline", "init", str(tmp_path / "shop")]) == 0
    made = {str(path.relative_to(tmp_path / "shop")) for path in (tmp_path / "shop").rglob("*") if path.is_file()}
    assert made == {"spark-pipeline.yml", "transformations/orders.py", "README.md", ".gitignore"}
    assert compileall.compile_dir(tmp_path / "shop" / "transformations", quiet=1)
    assert (tmp_path / "shop" / "storage").as_uri() in (tmp_path / "shop" / "spark-pipeline.yml").read_text()
    assert "spark-pipelines run" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options", [["--topic", "no good"], ["--into", "orders"], ["--url", "nowhere"], ["--url", 'http://a"b']]
)
def test_what_cannot_be_meant_is_refused_before_anything_is_made(options: list[str], tmp_path: Path):
    assert main(["pipeline", "init", str(tmp_path / "shop"), *options]) == 2
    assert not (tmp_path / "shop").exists()


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine").write_text("precious")
    assert main(["pipeline", "init", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert "not empty" in capsys.readouterr().err
    assert main(["pipeline", "init", str(tmp_path / "mine")]) == 2
