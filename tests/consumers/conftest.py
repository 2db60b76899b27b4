import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One server for the tests of a module."""
    directory: Path = tmp_path_factory.mktemp("consumers")
    server = ServerProcess(directory, {"data_dir": directory / "data", "max_consumers": 20})
    client = Api(server.url)
    yield client
    client.close()
    server.stop()


@pytest.fixture
def topic(api: Api) -> str:
    """A topic with ten records that no other test uses."""
    name = f"t{next(_numbers)}"
    api.write(name, *range(10))
    return name
