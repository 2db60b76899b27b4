"""Directories that another version wrote to: refused with that version if this one would lose what is in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.simulated.disk import SimDisk
from tests.simulated.harness import ROOT, SimServer
from topics import __version__
from topics.client.request import Put
from topics.engine.durable.entry_kinds import KINDS
from topics.engine.offline.verify import verify
from topics.engine.state import snapshot_parts
from topics.engine.state.jobs.saved import SavedLeases
from topics.model.topic import ArchiveConfig, TopicConfig
from topics.storage import snapshot as snap
from topics.storage.datadir import FORMAT_VERSION, DataDirError
from topics.storage.log import entry, frame, ledger, walfile
from topics.storage.segments import codec
from topics.storage.segments.extras import Terms

NEWER = "9.8.7"


def written() -> tuple[SimServer, SimDisk]:
    """Return a server that was killed, and a disk with files that a newer version wrote."""
    server = SimServer.start(SimDisk(seed=3))
    server.append("f", "1", "2", durability="fsync")
    server.checkpoint()
    server.append("f", "3")
    disk = server.disk.crash("keep")
    put(disk, f"{ROOT}/VERSION", NEWER.encode())
    return server, disk


def put(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.pwrite(data, 0)
    file.close()


def last(disk: SimDisk, suffix: str) -> str:
    return [path for path in disk.files() if path.endswith(suffix)][-1]


def add_to_log(disk: SimDisk, data: bytes) -> None:
    path = last(disk, ".wal")
    disk.open(path, write=True).pwrite(data, walfile.written_end(disk.contents(path)))


def change_snapshot(disk: SimDisk, change: Callable[[snap.Snapshot], None]) -> None:
    path = last(disk, ".snap")
    snapshot = snap.decode(disk.contents(path), path=path)
    change(snapshot)
    put(disk, path, snap.encode(snapshot))


def new_kind(disk: SimDisk) -> None:
    add_to_log(disk, frame.encode(60, 1, 0, 0, b"\xc0"))


def new_setting_in_the_log(disk: SimDisk) -> None:
    config = msgspec.to_builtins(TopicConfig()) | {"colour": "red"}
    add_to_log(disk, frame.encode(entry.CREATE, 7, 0, 0, msgspec.msgpack.encode([7, "new", 1, config, 0])))


def new_durability_in_the_log(disk: SimDisk) -> None:
    config = msgspec.to_builtins(TopicConfig()) | {"durability": "carved_in_stone"}
    add_to_log(disk, frame.encode(entry.CREATE, 7, 0, 0, msgspec.msgpack.encode([7, "new", 1, config, 0])))


def new_topic_part(disk: SimDisk) -> None:
    def change(snapshot: snap.Snapshot) -> None:
        snapshot.topics[0].extra = {"colours": msgspec.Raw(b"\xc0")}

    change_snapshot(disk, change)


def new_state_part(disk: SimDisk) -> None:
    def change(snapshot: snap.Snapshot) -> None:
        snapshot.extra["colours"] = msgspec.Raw(b"\xc0")

    change_snapshot(disk, change)


def new_field_of_a_topic(disk: SimDisk) -> None:
    path = last(disk, ".snap")
    data = disk.contents(path)
    snapshot = msgspec.msgpack.decode(data[snap._HEADER.size : len(data) // 2 - 8])
    snapshot[5][0] = [*snapshot[5][0], "new"]
    body = msgspec.msgpack.encode(snapshot)
    head = snap._HEADER.pack(snap.MAGIC, snap.VERSION, 0, len(body)) + body
    put(disk, path, 2 * (head + codec.sum64(head).to_bytes(8, "little")))


def new_setting_in_the_ledger(disk: SimDisk) -> None:
    config = msgspec.to_builtins(TopicConfig()) | {"colour": "red"}
    path = last(disk, ".ledger")
    note = frame.encode(ledger.TOPIC, 7, 100, 0, msgspec.msgpack.encode(("new", 1, config)))
    disk.open(path, write=True).pwrite(note, walfile.written_end(disk.contents(path)))


def new_note_in_the_ledger(disk: SimDisk) -> None:
    path = last(disk, ".ledger")
    note = frame.encode(99, 7, 100, 0, b"\xc0")
    disk.open(path, write=True).pwrite(note, walfile.written_end(disk.contents(path)))


def new_format(disk: SimDisk) -> None:
    put(disk, f"{ROOT}/FORMAT", b"topics-data %d\n" % (FORMAT_VERSION + 1))


@pytest.mark.parametrize(
    "change",
    [
        new_kind, new_setting_in_the_log, new_durability_in_the_log, new_topic_part, new_state_part,
        new_field_of_a_topic, new_setting_in_the_ledger, new_note_in_the_ledger, new_format,
    ],
)  # fmt: skip
def test_start_is_refused_with_the_version_that_wrote_it(change: Callable[[SimDisk], None]) -> None:
    server, disk = written()
    change(disk)
    before = {path: disk.contents(path) for path in disk.files() if not path.endswith("LOCK")}
    expected = f"was written by topics {NEWER}, and topics {__version__} does not know all of it"
    with pytest.raises(DataDirError, match=expected):
        verify(disk, ROOT)
    with pytest.raises(DataDirError, match=expected):
        server.next(disk)
    assert {path: disk.contents(path) for path in disk.files() if not path.endswith("LOCK")} == before


def test_entry_that_this_version_wrote_and_cannot_read_is_damage() -> None:
    server, disk = written()
    put(disk, f"{ROOT}/VERSION", __version__.encode())
    new_setting_in_the_log(disk)
    after = server.next(disk)
    assert after.recovered is not None
    assert len(after.recovered.damage) == 1
    assert after.data("f") == ["1", "2", "3"]


def test_start_signs_the_directory_before_it_writes() -> None:
    server, disk = written()
    put(disk, f"{ROOT}/FORMAT", b"topics-data 1\n")
    begun = len(disk.calls)
    after = server.next(disk)
    assert after.data("f") == ["1", "2", "3"]
    assert disk.contents(f"{ROOT}/FORMAT") == b"topics-data %d\n" % FORMAT_VERSION
    assert disk.contents(f"{ROOT}/VERSION").decode().strip() == __version__
    changes = [call for call in disk.calls[begun:] if call.op in ("pwrite", "pwritev", "rename", "unlink")]
    assert [(call.op, "FORMAT" in call.path) for call in changes[:2]] == [("pwritev", True), ("rename", True)]


def fingerprint() -> str:
    """Return a digest of what this version stores: entries, snapshots, settings, and the versions of single files."""
    kinds = [frame.MAGIC, frame.MORE, walfile.VERSION, walfile.FOLLOWS, snap.VERSION, codec.VERSION, codec.MAGIC]
    structs = [snap.Snapshot, snap.TopicSnapshot, snap.SegmentRef, snap.TailRef, TopicConfig, ArchiveConfig]
    structs += [Terms, SavedLeases]
    entries = sorted((kind.entry for kind in KINDS if kind.entry is not entry.Append), key=lambda kind: kind.kind)
    structs += entries
    parts = [part.name for part in snapshot_parts.TOPIC_PARTS] + [snapshot_parts.ROUTERS, snapshot_parts.SCHEDULES]
    fields = [[name, str(kind)] for one in structs for name, kind in _schema(one).items()]
    found = [[repr(kind) for kind in kinds], sorted(parts), [kind.kind for kind in entries], fields]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16]


def _schema(struct: type[msgspec.Struct]) -> dict[str, object]:
    """Return the fields with their types, in order."""
    _, components = msgspec.json.schema_components([struct])
    return {"struct": struct.__name__, "fields": list(struct.__struct_fields__)} | {
        name: _without_texts(component) for name, component in sorted(components.items())
    }


def _without_texts(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {name: _without_texts(part) for name, part in schema.items() if name != "description"}
    return [_without_texts(part) for part in schema] if isinstance(schema, list) else schema


def test_format_number_is_raised_with_every_change_of_the_format() -> None:
    """If this fails: raise `FORMAT_VERSION`, unless no release has the present number; then record the fingerprint."""
    recorded = json.loads((Path(__file__).parent / "formats.json").read_text())
    assert recorded[str(FORMAT_VERSION)] == fingerprint(), f"what is stored has changed: now {fingerprint()}"
    assert max(map(int, recorded)) == FORMAT_VERSION


def test_client_reads_the_settings_of_a_newer_server() -> None:
    config = msgspec.to_builtins(TopicConfig()) | {"colour": "red", "archive": {"hold": True, "colour": "red"}}
    answer = {"topic": "t", "created": True, "epoch": 1, "config": config, "performance": {"server_total_ms": 1.0}}
    put_topic = msgspec.json.decode(msgspec.json.encode(answer), type=Put)
    assert put_topic.config.archive is not None
    assert put_topic.config.archive.hold
