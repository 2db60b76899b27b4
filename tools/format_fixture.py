"""Write a small data directory with an older version of topics, as a fixture for tests/storage/test_old_directories.py.

    git worktree add /tmp/old <commit>
    python tools/format_fixture.py /tmp/old/src tests/storage/directories/<name>.tar.gz

The archive has two directories: `stopped` was stopped cleanly, so it has a snapshot and segments; `killed` was killed,
so its newest records are in the log only. `expected.json` has what the old version answered about both.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

START_LIMIT_S = 30.0
SETTINGS = {
    "TOPICS_SEGMENT_MAX_EVENTS": "16",
    "TOPICS_CHECKPOINT_WAL_BYTES": "65536",
    "TOPICS_WAL_FILE_BYTES": "65536",
    "TOPICS_LOG_FORMAT": "json",
}


class OldServer:
    """A server of another version, over HTTP."""

    def __init__(self, source: Path, data_dir: Path) -> None:
        port_file = data_dir.with_suffix(".port")
        port_file.unlink(missing_ok=True)
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        env |= {"PYTHONPATH": str(source), "TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file), **SETTINGS}
        env["TOPICS_DATA_DIR"] = str(data_dir)
        self.process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=env, stderr=subprocess.PIPE)
        deadline = time.monotonic() + START_LIMIT_S
        while not (port_file.exists() and port_file.read_text().strip()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                assert self.process.stderr is not None
                raise SystemExit(f"the server did not start:\n{self.process.stderr.read().decode()}")
            time.sleep(0.02)
        self.port = int(port_file.read_text())
        while self.status("GET", "/v0/ready") != 200:
            time.sleep(0.02)

    def status(self, method: str, path: str) -> int:
        try:
            self.call(method, path)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    def call(self, method: str, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"content-type": "application/json"},
            method=method,
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def append(self, topic: str, first: int, count: int) -> None:
        records = [
            {"data": {"n": n, "text": 'é\n"quoted"'}, "tag": f"tag-{n % 3}", "node": f"node-{n % 2}", "meta": {"m": n}}
            for n in range(first, first + count)
        ]
        self.call("POST", f"/v0/topics/{topic}", {"records": records})

    def end(self, sig: signal.Signals) -> None:
        self.process.send_signal(sig)
        self.process.communicate(timeout=30)


def fill_stopped(server: OldServer) -> None:
    """Write one topic of each kind: every durability that survives a stop, a cap, a TTL, deletes, a queue, a router."""
    for durability in ("memory", "disk", "fsync"):
        server.call("PUT", f"/v0/topics/{durability}", {"durability": durability})
        server.append(durability, 0, 40)
    server.call("PUT", "/v0/topics/capped", {"cap_records": 10, "priority": 7})
    server.append("capped", 0, 25)
    server.call("PUT", "/v0/topics/expired", {"ttl_ms": 1})
    server.append("expired", 0, 5)
    server.append("deleted", 0, 20)
    server.call("POST", "/v0/topics/deleted/delete", {"before_seq": 6})
    server.call("POST", "/v0/topics/deleted/delete", {"match": ["tag", "Eq", "tag-1"]})
    server.call("PUT", "/v0/routers/disk->copy", {"source": "disk", "dest": "copy"})
    server.append("disk", 40, 5)
    _fill_queue(server)
    _fill_schedules(server)
    if server.status("GET", "/v0/consumers") == 200:
        server.call("PUT", "/v0/topics/disk/consumers/billing", {"seq": 12, "meta": {"host": "b7"}})


def _fill_queue(server: OldServer) -> None:
    server.call("PUT", "/v0/topics/jobs", {"type": "queue", "durability": "fsync", "leases_durable": True})
    server.append("jobs", 0, 6)
    server.call("POST", "/v0/topics/jobs/claim", {"node": "worker", "max": 3, "lease_ms": 86_400_000})
    server.call("POST", "/v0/topics/jobs/ack", {"node": "worker", "seqs": [1]})


def _fill_schedules(server: OldServer) -> None:
    """Write what came with schedules: jobs with keys, reasons of dead letters, and a schedule that has run once."""
    if server.status("GET", "/v0/schedules") != 200:
        return
    config = {
        "type": "queue",
        "durability": "fsync",
        "leases_durable": True,
        "max_deliveries": 1,
        "dead_letter": "dead",
    }
    server.call("PUT", "/v0/topics/keyed", config)
    unique = {"data": "once", "key": "k0", "unique": {"key": "u", "for": "pending"}}
    for records in ([unique], [{"data": n, "key": f"k{n % 2}"} for n in range(6)]):
        server.call("POST", "/v0/topics/keyed", {"records": records})
    claim = {"node": "w", "max": 2, "lease_ms": 86_400_000}
    first = server.call("POST", "/v0/topics/keyed/claim", claim)["claimed"][0]
    nack = {"node": "w", "seqs": [first["$seq"]], "reason": "timeout", "error": {"type": "Timeout", "message": "30 s"}}
    server.call("POST", "/v0/topics/keyed/nack", nack)
    schedule = {"topic": "keyed", "record": {"data": {"do": "report"}, "key": "k9"}, "cron": "0 3 29 2 *"}
    server.call("PUT", "/v0/schedules/yearly", {**schedule, "timezone": "Europe/Berlin", "paused": True})
    server.call("POST", "/v0/schedules/yearly/run", {})


def fill_killed(server: OldServer) -> None:
    """Write what a killed process keeps on every machine: topics with `fsync`."""
    server.call("PUT", "/v0/topics/orders", {"durability": "fsync"})
    server.append("orders", 0, 30)
    server.append("orders", 30, 1)
    server.call("POST", "/v0/topics/orders/delete", {"match": ["tag", "Glob", "tag-2*"]})
    _fill_queue(server)
    _fill_schedules(server)
    if server.status("GET", "/v0/consumers") == 200:
        for name in ("billing", "mail", "gone"):
            server.call("PUT", f"/v0/topics/orders/consumers/{name}", {"seq": 12, "meta": {"host": "b7"}})
        server.call("POST", "/v0/consumers", {"commits": [{"topic": "orders", "consumer": "mail", "seq": 31}]})
        server.call("DELETE", "/v0/topics/orders/consumers/gone")


def answers(server: OldServer) -> dict[str, Any]:
    """Return the records, the positions and the configuration of every topic, and the routers."""
    found = {}
    for row in server.call("GET", "/v0/topics")["topics"]:
        name = row["topic"]
        state = server.call("GET", f"/v0/topics/{name}?touch=false")
        body = {"from_seq": 0, "limit": 1000, "include_tags": True}
        page = server.call("POST", f"/v0/topics/{name}/diff", body)
        assert page["caught_up"], name
        found[name] = {
            "epoch": state.get("epoch"),
            "head_seq": state["head_seq"],
            "count": state["count"],
            "config": state["config"],
            "records": page["records"],
            "tombstone": page["tombstone"],
            "queue": state.get("queue"),
        }
    routers = [
        {name: row[name] for name in ("router", "source", "dest")}
        for row in server.call("GET", "/v0/routers")["routers"]
    ]
    return {"topics": found, "routers": routers, "consumers": _consumers(server), "schedules": _schedules(server)}


def _consumers(server: OldServer) -> list[dict[str, Any]]:
    """Return the named consumers; none if this version has none."""
    if server.status("GET", "/v0/consumers") != 200:
        return []
    rows = server.call("GET", "/v0/consumers")["consumers"]
    return [{name: row[name] for name in ("topic", "consumer", "seq", "meta")} for row in rows]


def _schedules(server: OldServer) -> list[dict[str, Any]]:
    """Return the schedules; none if this version has none."""
    if server.status("GET", "/v0/schedules") != 200:
        return []
    rows: list[dict[str, Any]] = server.call("GET", "/v0/schedules")["schedules"]
    return rows


def main(argv: list[str]) -> int:
    source, target = Path(argv[0]).resolve(), Path(argv[1])
    with tempfile.TemporaryDirectory(prefix="topics-fixture-") as path:
        root, expected = Path(path), {}
        for name, fill, sig in (("stopped", fill_stopped, signal.SIGTERM), ("killed", fill_killed, signal.SIGKILL)):
            server = OldServer(source, root / name)
            fill(server)
            time.sleep(0.5)  # the router copies, and the TTL passes
            expected[name] = answers(server)
            expected["version"] = server.call("GET", "/v0/health")["version"]
            server.end(sig)
            (root / name / "LOCK").unlink(missing_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as archive:
            for name in ("stopped", "killed"):
                archive.add(root / name, name)
            text = json.dumps(expected, indent=1).encode()
            entry = tarfile.TarInfo("expected.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    print(f"{target}: {target.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
