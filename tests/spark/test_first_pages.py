"""The Spark parts of README.md and of the tutorial, in the session that tests share.

`make torture` runs both pages as a reader does, with a new session for each command.
"""

from __future__ import annotations

import runpy
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conftest import StartServer
from tests.docs.blocks import Block, blocks_of
from tests.docs.test_commands import is_output
from topics.cli.main import main
from topics.client import Client

ROOT = Path(__file__).parents[2]


@pytest.fixture
def client(start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    server = start_server(data_dir=tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOPICS_URL", server.url)
    return Client(server.url)


def slow_blocks(page: Path) -> list[tuple[Block, Block]]:
    """Return the blocks of a page that start Spark, each with the next one, which has its output."""
    return [pair for pair in pairwise(blocks_of(page.read_text())) if pair[0].mark == "slow"]


def run(block: Block) -> None:
    """Run the `topics` commands of a block in this process."""
    for line in block.text.splitlines():
        # The shared session was started in another directory, which relative paths would refer to.
        command = line.partition(" 2> ")[0].replace("--lake lake", f"--lake {Path('lake').resolve()}")
        if " spark " in command:  # `topics spark start`, see test_warm.py: the tests have a session already
            print(command)
        else:
            assert main(shlex.split(command)[1:]) == 0, command


def test_readme_queries_archives_and_audits(
    spark: SparkSession, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    page = ROOT / "README.md"
    with client:
        client.append("orders", [{"data": {"sku": "V60", "qty": 2}, "tag": "eu:ada"}])
        [(commands, output)] = slow_blocks(page)
        run(commands)
        printed = capsys.readouterr().out
        assert is_output(output.text, printed), printed
        [program] = [block for block in blocks_of(page.read_text()) if "topics.spark" in block.text]
        exec(program.text.replace("http://127.0.0.1:4000", client.url), {})
        assert "|eu:ada|    1|" in capsys.readouterr().out


def test_tutorial_archives_orders_and_the_gap_of_views(
    spark: SparkSession, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with client:
        client.append("orders", [{"data": {"sku": "KETTLE", "qty": 1}}, {"data": {"sku": "V60", "qty": 4}}])
        client.append("orders", [{"data": {"sku": "V60", "qty": 1}}] * 202)
        client.put_topic("views", cap_records=17)
        client.append("views", [{"data": {"page": "home"}}] * 12)
        client.append("views", [{"data": {"page": "cart"}}] * 12)
        (program, summary), (commands, result) = slow_blocks(ROOT / "docs" / "tutorial.md")
        assert program.text == "python lake.py 2> spark.log\n"
        runpy.run_path(str(ROOT / "examples" / "shop" / "lake.py"))
        printed = capsys.readouterr().out
        assert is_output(summary.text, printed), printed
        run(commands)
        printed = capsys.readouterr().out
        assert is_output(result.text, printed), printed
