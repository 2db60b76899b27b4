"""Large reads around a few deleted records: a sealed segment lends the bytes between them to the socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually

RECORDS = 4_000
FILL = "x" * 100


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    settings = {"data_dir": tmp_path / "data", "segment_max_events": 1_500, "checkpoint_interval_ms": 100}
    server = ServerProcess(tmp_path, settings)
    found = Api(server.url)
    yield found
    found.close()
    server.stop()


def test_large_reads_skip_exactly_the_deleted_records(api: Api, tmp_path: Path) -> None:
    rng = Random(7)
    for first in range(0, RECORDS, 1_000):
        api.write("t", *(f"{first + at} {FILL}" for at in range(1_000)))
    eventually(lambda: len(list((tmp_path / "data" / "segments").rglob("*.seg"))), lambda files: files >= 2)
    live = set(range(1, RECORDS + 1))
    # Neighbours, the first and the last record of a segment, and more of them from round to round.
    for some in (
        [700, 701, 702, 1500, 1501, 3000],
        rng.sample(range(1, RECORDS), 30),
        rng.sample(range(1, RECORDS), 30),
    ):
        api.call("POST", "/v0/topics/t/delete", {"seqs": some})
        live -= set(some)
        for _ in range(60):
            from_seq, limit = rng.randrange(RECORDS), rng.choice((500, 1000))
            page = api.diff("t", from_seq=from_seq, limit=limit)
            expected = [seq for seq in sorted(live) if seq > from_seq][:limit]
            assert [row["$seq"] for row in page["records"]] == expected
            assert all(row["data"] == f"{row['$seq'] - 1} {FILL}" for row in page["records"])
