"""`topics verify`, on directories of real servers."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.data.data_world import World, append, client, contents, serving, started_on, topics
from tests.cli.data.directories import check, flip, segment_files
from topics.storage import snapshot as snap
from topics.storage.log import entry as entries
from topics.storage.log import frame


def test_verify_accounts_for_every_seq_after_an_orderly_stop(world: World):
    done = topics("verify", world.late, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert (report["clean"], report["damage"]) == (True, [])
    by_name = {topic["topic"]: topic for topic in report["topics"]}
    assert set(by_name) == {"brief", "capped", "log", "safe"}
    for name, topic in by_name.items():
        assert topic["live"] + topic["deleted"] + sum(topic["lost"].values()) == topic["head_seq"]
        assert name == "brief" or topic["live"] == len(world.late_records[name])
    assert by_name["capped"]["lost"] == {"cap": 140}
    assert by_name["brief"]["lost"] == {"restart": 170}
    assert by_name["log"]["deleted"] > 0


def test_verify_is_clean_after_a_kill(world: World):
    report = check(world.killed)
    assert report.damage == []
    assert report.log_entries > 0
    live = {topic.topic: topic.live for topic in report.topics if topic.durability != "ephemeral"}
    assert live == {name: len(world.killed_records[name]) for name in live}


@pytest.mark.parametrize("state", ["late", "killed"])
def test_verify_changes_nothing(world: World, tmp_path: Path, state: str):
    directory = shutil.copytree(getattr(world, state), tmp_path / "data")
    (directory / "wal" / "00000000000000000099.wal.tmp").write_bytes(b"unfinished")
    before = contents(directory)
    assert topics("verify", directory).returncode == 0
    assert contents(directory) == before


def test_verify_prints_a_readable_report(late: Path):
    done = topics("verify", late)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "clean"
    assert "capped" in done.stdout
    assert "140 (cap 140)" in done.stdout


def test_backup_counts_what_is_only_in_the_log_and_is_healthy(tmp_path: Path):
    hour = {"checkpoint_interval_ms": 3_600_000, "checkpoint_wal_bytes": "64MiB"}
    with serving(tmp_path / "server", tmp_path / "data", **hour) as server, client(server) as http:
        for name in ("a", "b"):
            append(http, name, 3)
        done = topics("backup", tmp_path / "data", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == f"backed up 2 topics, 6 records to {tmp_path / 'backup'}"
    report = json.loads(topics("verify", tmp_path / "backup", "--json").stdout)
    assert (report["clean"], [topic["lost"] for topic in report["topics"]]) == (True, [{}, {}])
    assert [(topic["head_seq"], topic["live"]) for topic in report["topics"]] == [(3, 3), (3, 3)]
    shown = topics("verify", tmp_path / "backup").stdout
    assert "lost (restart)" not in shown
    assert "note: 2 topics: `topics restore` continues after the last record" in shown
    restored = topics("restore", tmp_path / "backup", tmp_path / "restored")
    assert restored.stdout.startswith(f"restored 2 topics, 6 records to {tmp_path / 'restored'}")


@pytest.mark.parametrize("checkpoint_interval_ms", [100, 3_600_000])
def test_backup_of_a_routed_topic_has_no_losses(tmp_path: Path, checkpoint_interval_ms: int):
    settings = {"checkpoint_interval_ms": checkpoint_interval_ms}
    with serving(tmp_path / "server", tmp_path / "data", **settings) as server, client(server) as http:
        append(http, "s", 5)
        http.put("/v0/routers/r", json={"source": "s", "dest": "d", "from_seq": 0}).raise_for_status()
        append(http, "s", 1)
        assert topics("backup", tmp_path / "data", tmp_path / "backup").returncode == 0
    report = json.loads(topics("verify", tmp_path / "backup", "--json").stdout)
    assert [(topic["topic"], topic["head_seq"], topic["lost"]) for topic in report["topics"]] == [
        ("d", 6, {}), ("s", 6, {}),
    ]  # fmt: skip


def test_verify_refuses_an_open_directory_and_names_its_owner(tmp_path: Path):
    with serving(tmp_path / "server", tmp_path / "data") as server:
        done = topics("verify", tmp_path / "data")
    assert done.returncode == 2
    assert f"held by pid {server.process.pid}" in done.stderr


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_verify_refuses_other_directories_with_status_2(tmp_path: Path, make: Callable[[Path], None]):
    make(tmp_path / "other")
    for command in (["verify"], ["backup"], ["restore"]):
        args = [*command, tmp_path / "other"] + ([] if command == ["verify"] else [tmp_path / "target"])
        done = topics(*args)
        assert (done.returncode, done.stdout) == (2, "")
        assert "\nnext: " in done.stderr
        assert "Traceback" not in done.stderr


def test_invalid_arguments_exit_with_status_2():
    assert topics("verify").returncode == 2
    assert topics("backup", "only-one").returncode == 2


def positions(size: int, count: int) -> Iterator[int]:
    """Return both ends and positions spread between them."""
    yield from sorted({0, size - 1, *(size * n // count for n in range(count))})


def test_verify_finds_a_flipped_bit_in_a_segment(late: Path):
    path = segment_files(late)[1]
    whole = path.read_bytes()
    for at in positions(len(whole), 60):
        flip(path, at, 1 << at % 8)
        report = check(late)
        assert [finding.file for finding in report.damage] == [str(path)], f"byte {at} of {len(whole)}"
        for topic in report.topics:
            assert topic.live + topic.deleted + sum(topic.lost.values()) == topic.head_seq
        path.write_bytes(whole)
    assert check(late).clean


@pytest.mark.parametrize("pattern", ["snapshots/*.snap", "FORMAT"])
def test_verify_finds_a_flipped_bit_in_other_files(late: Path, pattern: str):
    path = min(late.glob(pattern))
    whole = path.read_bytes()
    for at in positions(len(whole), 60):
        flip(path, at, 1 << at % 8)
        report = check(late)
        assert {finding.file for finding in report.damage} == {str(path)}, f"byte {at} of {len(whole)}"
        path.write_bytes(whole)


def test_verify_finds_a_flipped_bit_in_the_tails(late: Path):
    """Flip bits only in parts that the snapshot names: a tails file can have others that are not needed."""
    [path] = late.glob("snapshots/*.snap")
    tails = [topic.tail for topic in snap.decode(path.read_bytes(), path="").topics if topic.tail is not None]
    assert tails
    for tail in tails:
        [path] = late.glob(f"snapshots/*{tail.tails}.tails")
        whole = path.read_bytes()
        for at in positions(tail.size, 30):
            flip(path, tail.offset + at, 1 << at % 8)
            report = check(late)
            assert {finding.file for finding in report.damage} == {str(path)}, f"byte {at} of {tail.size}"
            for topic in report.topics:
                assert topic.live + topic.deleted + sum(topic.lost.values()) == topic.head_seq
            path.write_bytes(whole)


def test_verify_finds_a_flipped_bit_in_the_log(world: World, tmp_path: Path):
    directory = shutil.copytree(world.killed, tmp_path / "data")
    [path] = [path for path in directory.glob("wal/*.wal") if len(path.read_bytes().rstrip(b"\0")) > 1000]
    whole = path.read_bytes()
    written = len(whole.rstrip(b"\0"))
    for at in positions(written, 80):
        flip(path, at, 1 << at % 8)
        report = check(directory)
        reported = [finding.file for finding in report.damage] or [note.split(" at ")[0] for note in report.notes]
        assert str(path) in reported, f"byte {at} of {written}"
        path.write_bytes(whole)


def test_entry_without_records_that_does_not_decode_is_not_called_harmless(world: World, tmp_path: Path):
    directory = shutil.copytree(world.killed, tmp_path / "data")
    (directory / "REPLICA").write_bytes(b"{}")
    [path] = [path for path in directory.glob("wal/*.wal") if len(path.read_bytes().rstrip(b"\0")) > 1000]
    whole = path.read_bytes()
    end = len(whole.rstrip(b"\0"))
    broken = frame.encode(entries.CONFIGURE, 1, 0, 0, b"\xc1")  # whole, with a body that no version writes
    path.write_bytes(whole[:end] + broken + whole[end + len(broken) :])
    [finding] = (report := check(directory)).damage
    assert (finding.file, finding.offset) == (str(path), end)
    assert "a change of topic" in finding.what
    assert "nothing is lost" not in finding.next
    assert not any("REPLICA" in note for note in report.notes)


def test_damage_report_has_file_offset_seqs_and_next_step(late: Path):
    path = segment_files(late)[0]
    flip(path, 100)
    done = topics("verify", late)
    assert done.returncode == 1
    assert f"damaged: {path} at byte 8: a chunk of data does not match its checksum" in done.stdout
    assert ", seqs " in done.stdout
    assert "  next: if these records matter, restore them from a backup" in done.stdout
    report = json.loads(topics("verify", late, "--json").stdout)
    [finding] = report["damage"]
    assert (finding["file"], finding["offset"]) == (str(path), 8)
    assert finding["first_seq"] <= finding["last_seq"]
    lost = {topic["topic"]: topic["lost"].get("corrupt", 0) for topic in report["topics"]}
    assert lost[finding["topic"]] > 0


def test_server_loses_exactly_what_verify_reports(late: Path, tmp_path: Path):
    flip(segment_files(late)[0], 100)
    said = {topic.topic: topic.live for topic in check(late).topics}
    served = started_on(tmp_path / "server", late)
    assert {name: len(found) for name, found in served.items()} == said


def test_missing_segment_is_damage_and_unreferenced_one_is_not(late: Path):
    [first, *_, last] = segment_files(late)
    shutil.copy(first, last.with_name("00000000000000099999.seg"))
    report = check(late)
    assert report.clean
    assert any("99999.seg: nothing refers to this file" in note for note in report.notes)
    first.unlink()
    [finding] = check(late).damage
    assert (finding.file, finding.what) == (str(first), "the file is missing")


def test_progress_goes_to_standard_error_only():
    from io import StringIO

    from topics.cli.offline.guarded import Meter

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    plain, terminal = StringIO(), Terminal()
    for out in (plain, terminal):
        with Meter("checked", out) as meter:
            meter._last -= 10
            meter.show(512, 1024)
    assert plain.getvalue() == "checked 512 B of 1.0 KiB (50%)\n"
    assert terminal.getvalue().startswith("\r\x1b[K[###############...............]  50%")
    assert terminal.getvalue().endswith("\r\x1b[K")
