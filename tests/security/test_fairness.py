"""One client's floods and expensive requests beside another client that appends every 10 ms.

Timed, and therefore not part of the default suite: `pytest -m torture tests/security/test_fairness.py -s` prints the
figures. The bounds behind them are counted in operations by `tests/live/test_websocket_turns.py` and its likes.
"""

import time
from collections.abc import Iterator

import pytest

from tests.conftest import ServerProcess
from tests.security import floods
from tests.security.fairness import make_topics, measure

pytestmark = pytest.mark.torture

P99_MS = 50
WORST_MS = 200
ATTEMPTS = 3  # other work on the machine only ever makes the figures worse
BUSY_P99_MS = 10  # without a flood, a quiet machine stays below 2 ms
TOPICS = 1_000


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory = tmp_path_factory.mktemp("fairness")
    server = ServerProcess(directory, {"data_dir": directory / "data"})
    make_topics(server.port, TOPICS)
    yield server.port
    server.stop()


@pytest.mark.parametrize("name", floods.FLOODS)
def test_a_flood_delays_no_other_client(port: int, name: str) -> None:
    for _ in range(ATTEMPTS):
        figures = measure(port, floods.FLOODS[name])
        print(f"\n{name:28} {figures}")
        if figures.p99_ms < P99_MS and figures.worst_ms < WORST_MS:
            return
    calm = measure(port, quiet)
    if calm.p99_ms > BUSY_P99_MS:
        pytest.skip(f"the machine is too busy to judge {name}: {figures}; without a flood: {calm}")
    pytest.fail(f"{name}: {figures}; without a flood: {calm}")


def quiet(port: int) -> None:
    """Send nothing for a second."""
    time.sleep(1)
