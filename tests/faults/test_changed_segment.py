"""A segment file that changes after a running server has read it: readers get a tombstone after the next check."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually

# `topics serve` that trusts a check for a millisecond instead of an hour.
PROGRAM = """
import sys
from topics.cli.main import main
from topics.server.loop import storage
storage.CHECKED_FOR_NS = 1_000_000
sys.exit(main(["serve", *sys.argv[1:]]))
"""


def test_damage_after_the_first_read_is_reported(tmp_path: Path):
    data = tmp_path / "data"
    settings = {"data_dir": data, "segment_max_events": 100, "checkpoint_interval_ms": 100}
    first = ServerProcess(tmp_path, settings)
    with closing(Api(first.url)) as api:
        for low in range(0, 400, 100):
            api.append("t", [{"data": f"record {n}"} for n in range(low, low + 100)])
    first.stop()
    server = ServerProcess(tmp_path, settings, program=["-c", PROGRAM])
    with closing(Api(server.url)) as api:
        assert len(api.diff("t", limit=400)["records"]) == 400
        change(data, b'"record 150"')
        page = eventually(lambda: api.diff("t", from_seq=149, limit=100), lambda page: page["tombstone"])
    log = server.log()
    server.kill()
    gap = page["tombstone"]
    assert (gap["reason"], gap["gap_from"], gap["gap_to"]) == ("corrupt", 150, 200)
    assert [row["$seq"] for row in page["records"]] == list(range(201, 301))
    assert '"event":"data_damaged","topic":"t","first_seq":101,"last_seq":200' in log, log


def change(data: Path, text: bytes) -> None:
    """Change a byte of the text in the segment that has it."""
    [path] = [path for path in data.rglob("*.seg") if text in path.read_bytes()]
    at = path.read_bytes().index(text)
    with path.open("r+b") as file:
        file.seek(at + 1)
        file.write(b"R")
