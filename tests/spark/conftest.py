"""One Spark session for all tests of this folder, started when the first of them asks for it."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import SMALL_PARTS, ServerProcess
from topics.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

collect_ignore_glob = [] if find_spec("pyspark") and find_spec("pyarrow") else ["test_*.py"]

QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a short query takes a third of the time less

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": 1,  # a stateful stream takes 1.4 s instead of 10.7
    "spark.default.parallelism": 2,
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",  # failures that tests provoke fill the terminal otherwise
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}

# For a handful of rows, compiling a plan takes longer than running it.
QUICK_PLANS = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pyspark, about packages that it does not know yet
        from tests.spark.processes import slim_home
        from topics.spark import session

        os.environ.setdefault("SPARK_HOME", slim_home())
        config: dict[str, Any] = (
            CONFIG | QUICK_PLANS | {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
        )
        running = session("tests", master="local[2,2]", config=config)  # a failed task is tried again, as on a cluster
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def where_jobs_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the jobs of a test without the session run in this process, as where PySpark is not installed."""
    if "spark" not in request.fixturenames:
        monkeypatch.setattr("topics.spark.pipelines.run.tasks.is_installed", lambda package: False)
        monkeypatch.setattr("topics.spark.warm.is_installed", lambda package: False)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with small segments, so that most records of a test are read from files."""
    directory = tmp_path_factory.mktemp("server")
    running = ServerProcess(directory, {"data_dir": directory / "data", **SMALL_PARTS})
    yield running
    running.stop()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as connected:
        yield connected


@pytest.fixture
def topic() -> str:
    """A name no other test uses."""
    return f"topic{next(_numbers)}"


@pytest.fixture
def here() -> bool:
    """The value of `spark` with which tasks run in this process."""
    return False
