"""A topic several times as large as the memory that the server may use, its page cache included.

The limit is a memory cgroup where this process may make one (then the kernel evicts pages all the time, and ends a
server that takes too much). Elsewhere the files are dropped from the cache all the time. In both cases the most memory
that the server ever had is measured.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ServerProcess
from tests.contract.api import Api, eventually
from tests.faults.evicting import Evicting, can_evict, evict
from tests.live.events import Events

CGROUPS = Path("/sys/fs/cgroup/memory")
MIB = 1 << 20
TEXT = "x" * 900
TAGS = 1_000
BATCH = 2_000


@contextmanager
def limited(server: ServerProcess, limit_bytes: int, data: Path) -> Iterator[None]:
    """Limit the memory of the process and of the pages it reads to `limit_bytes`."""
    group = CGROUPS / f"topics-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        (group / "cgroup.procs").write_text(str(server.process.pid))
    except OSError:
        with suppress(OSError):
            group.rmdir()
        with Evicting(data):
            yield
        return
    try:
        yield
    finally:
        server.kill()
        eventually(lambda: (group / "cgroup.procs").read_text(), lambda pids: not pids)
        group.rmdir()


def most_memory_bytes(server: ServerProcess) -> int:
    """Return the peak resident size of the process."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


def fill(directory: Path, data: Path, records: int) -> None:
    server = ServerProcess(directory, {"data_dir": data})
    with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as http:
        http.put("/v0/topics/jobs", json={"type": "queue"}).raise_for_status()
        rows = [json.dumps({"data": TEXT, "tag": f"c{n}"}) for n in range(TAGS)] * (BATCH // TAGS)
        body = '{{"records":[{}]}}'.format(",".join(rows))
        plain = '{{"records":[{}]}}'.format(",".join([json.dumps({"data": TEXT})] * BATCH))
        headers = {"content-type": "application/json"}
        for _ in range(records // BATCH):
            http.post("/v0/topics/t?return_seqs=false", content=body, headers=headers).raise_for_status()
        for _ in range(records // BATCH // 8):
            http.post("/v0/topics/jobs?return_seqs=false", content=plain, headers=headers).raise_for_status()
    server.stop()


def read_every_way(server: ServerProcess, records: int) -> None:
    api, rng = Api(server.url), random.Random(7)
    for _ in range(50):
        at = rng.randrange(records - 100)
        page = api.diff("t", from_seq=at, limit=100)
        assert [row["$seq"] for row in page["records"]] == list(range(at + 1, at + 101))
    found = api.http.post("/v0/topics/t/scan", json={"filter": ["tag", "Eq", "c36"]}).text.splitlines()
    assert len(found) == records // TAGS + 1, found[-1]
    session = api.call("POST", "/v0/watch", {"topics": {"t": {"from_seq": 0, "filter": ["tag", "Eq", "c7"]}}}).json()
    with Events(server.url, session["stream_url"]) as events:
        events.sock.settimeout(120)
        frames = events.until("caught-up")
    assert sum(len(frame.seqs) for frame in frames[:-1]) == records // TAGS
    wanted = {"source": "t", "dest": "copy", "from_seq": 0, "filter": ["tag", "Eq", "c8"]}
    assert api.call("PUT", "/v0/routers/r", wanted).is_success
    work(api, records // BATCH // 8 * BATCH)
    assert api.delete("t", match=["tag", "Eq", "c36"])["deleted"] == records // TAGS
    eventually(lambda: api.get("/v0/routers/r")["lag"], lambda lag: lag == 0, within_s=600)
    assert api.state("copy")["count"] == records // TAGS
    assert whole_scan(server) == records - records // TAGS
    api.close()


def work(api: Api, jobs: int) -> None:
    done = 0
    while claimed := api.call("POST", "/v0/topics/jobs/claim", {"node": "w", "max": 1_000}).json()["claimed"]:
        seqs = [job["$seq"] for job in claimed]
        assert api.call("POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": seqs}).json()["acked"] == len(seqs)
        done += len(seqs)
    assert done == jobs


def whole_scan(server: ServerProcess) -> int:
    lines = 0
    with httpx.stream("POST", f"{server.url}/v0/topics/t/scan", json={}, timeout=120, trust_env=False) as answer:
        tail = b""
        for piece in answer.iter_bytes():
            lines += piece.count(b"\n")
            tail = (tail + piece)[-200:]
    assert b'{"end":' in tail, tail
    return lines - 1


@pytest.mark.parametrize(
    ("records", "limit_mib"),
    [(200_000, 96), pytest.param(2_000_000, 192, marks=pytest.mark.torture)],
)
def test_topic_larger_than_memory_is_read_every_way(tmp_path: Path, records: int, limit_mib: int):
    data = tmp_path / "data"
    if not can_evict(tmp_path):
        pytest.skip("this file system keeps its pages")
    fill(tmp_path / "first", data, records)
    size_bytes = sum(path.stat().st_size for path in data.rglob("*.seg"))
    assert size_bytes > 2 * limit_mib * MIB, "the topic is not larger than memory"
    evict(data)
    server = ServerProcess(tmp_path / "second", {"data_dir": data})
    evict(data)
    try:
        before: Any = most_memory_bytes(server)
        with limited(server, limit_mib * MIB, data):
            read_every_way(server, records)
            most = most_memory_bytes(server)
        assert most < limit_mib * MIB, f"{before / MIB:.0f} MiB at first, {most / MIB:.0f} MiB at most"
        print(f"{size_bytes / MIB:.0f} MiB of segments, {before / MIB:.0f} MiB at first, {most / MIB:.0f} MiB at most")
        assert '"level":"error"' not in server.log()
    finally:
        server.kill()
