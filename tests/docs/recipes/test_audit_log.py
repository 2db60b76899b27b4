"""docs/recipes/audit-log.md: one person is erased, the rest is complete, and bytes stay where the page says."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests import forks
from tests.conftest import SMALL_PARTS
from tests.docs.recipes.conftest import Kitchen, OpenKitchen, wait_for
from topics.client import NewRecord, Topics

SECRET = b"198.51.100.7"


def test_erasure_leaves_others_and_explains_itself(kitchen: Kitchen, topics: Topics) -> None:
    programs = kitchen.programs("audit-log")
    assert programs.run("audit.py", "42", "login", '{"ip": "198.51.100.7"}') == ["entry 1"]
    programs.run("audit.py", "420", "login", '{"ip": "203.0.113.9"}')
    kitchen.kill_server()  # both entries were synced
    assert programs.run("erase.py", "42", "request 113") == ["1 entries to erase", "1 entries erased"]
    assert programs.run("check.py") == ["3 entries: 2 live, 1 erased, 0 lost"]
    assert [item.tag for item in topics.read("audit")] == ["user-420:login", "system:erasure"]  # type: ignore[union-attr]
    assert _bytes_on_disk(kitchen), "a delete hides the record, and its bytes stay for a while"

    topics.delete("audit", match="user-420:login")  # an entry that is removed without a record of it
    assert programs.run("check.py", status=1)[-1] == "erasures explain 1 of 2 missing entries"
    topics.put_topic("audit", cap_records=1)
    programs.run("audit.py", "7", "login", "{}")
    assert programs.run("check.py", status=1)[-1].startswith("entries 1 to 3 are lost: ")


def test_bytes_go_with_the_last_record_of_their_segment(open_kitchen: OpenKitchen) -> None:
    kitchen = open_kitchen(**SMALL_PARTS)
    with Topics(kitchen.address.url) as topics:
        first = NewRecord(data={"ip": SECRET.decode()}, tag="user-42:login")
        others = [NewRecord(data={"ip": "203.0.113.9"}, tag="user-420:login") for _ in range(40)]
        topics.append_many("audit", [first, *others])  # one write, so that the first shares its segment with others
        topics.append_many("audit", others)  # seals that segment: it is full
        topics.delete("audit", match="user-42:login")
        wait_for(lambda: _bytes_on_disk(kitchen, "*.seg") or _write_elsewhere(topics))
        assert _bytes_on_disk(kitchen), "the records beside it are live"
        topics.delete("audit", before_seq=42)
        wait_for(lambda: not _bytes_on_disk(kitchen) or _write_elsewhere(topics))


def test_pipeline_erases_copies_and_leaves_a_receipt(kitchen: Kitchen, topics: Topics) -> None:
    topics.put_router("audit-copy", source="audit", dest="copy")
    topics.append("audit", 1, tag="user-42:login")
    topics.append("audit", 2, tag="user-420:login")
    wait_for(lambda: topics.topic("copy").head_seq == 2)
    erase = ["topics", "pipeline", "erase", "--url", kitchen.address.url, "--match", "user-42:*", "--json"]
    status, printed, complaints = forks.run(erase, {**os.environ}, b"", 60)
    assert status == 0, complaints
    assert json.loads(printed)["ok"]
    assert [item.data for item in topics.read("audit")] == [item.data for item in topics.read("copy")] == [2]  # type: ignore[union-attr]
    *_, receipt = topics.read("sys:pipelines")
    assert (receipt.tag, receipt.data["state"]) == ("erase", "done")  # type: ignore[union-attr]


def _bytes_on_disk(kitchen: Kitchen, files: str = "*") -> bool:
    return any(SECRET in _content(path) for path in kitchen.data_dir.rglob(files))


def _content(path: Path) -> bytes:
    """Return what a file has; nothing if the server has removed it meanwhile."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""


def _write_elsewhere(topics: Topics) -> None:
    """Write to another topic, so that the log goes on and a checkpoint has something to do."""
    topics.append("other", 1)
