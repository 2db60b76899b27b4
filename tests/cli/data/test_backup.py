"""`topics backup` and `restore`, on directories of real servers."""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.data.data_world import World, append, client, contents, everything, serving, started_on, topics
from tests.cli.data.directories import check, duplicate, flip, records_in, segment_files
from tests.conftest import ServerProcess
from topics.storage import snapshot as snap
from topics.storage.backup import copy
from topics.storage.backup_files import CopyError
from topics.storage.fs import File, Fs, Lock
from topics.storage.segments import codec


def test_backup_can_be_verified_restored_and_started(world: World, tmp_path: Path):
    done = topics("backup", world.killed, tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    assert "4 topics" in done.stdout
    assert topics("verify", tmp_path / "backup").returncode == 0
    done = topics("restore", tmp_path / "backup", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert f"next: topics serve --data-dir {tmp_path / 'data'}" in done.stdout
    assert topics("verify", tmp_path / "data").returncode == 0
    served = started_on(tmp_path / "server", tmp_path / "data")
    assert served == world.killed_records | {"brief": []}


def test_second_backup_copies_new_segments_and_deletes(world: World, tmp_path: Path):
    target = tmp_path / "backup"
    first = duplicate(world.early, target)
    assert started_on(tmp_path / "one", shutil.copytree(target, tmp_path / "copy")) == world.early_records | {
        "brief": []
    }
    second = duplicate(world.late, target)
    assert (first.segments_reused, second.segments_reused > 0) == (0, True)
    third = duplicate(world.late, target)
    assert (third.segments_copied, third.snapshot) == (0, second.snapshot)
    assert check(target).damage == []
    assert not [note for note in check(target).notes if "refers" in note]
    assert started_on(tmp_path / "two", target) == world.late_records | {"brief": []}


class Load:
    """Continuous writers, and the records that were acknowledged so far."""

    def __init__(self, server: ServerProcess, names: str) -> None:
        self.acked: dict[str, int] = {}
        self.deletes = 0
        self._stop = threading.Event()
        self._server = server
        self._names = names
        self._threads = [threading.Thread(target=self._write, args=(topic,)) for topic in names]
        for thread in self._threads:
            thread.start()

    def _write(self, topic: str) -> None:
        with client(self._server) as http:
            turn = 0
            while not self._stop.is_set():
                self.acked[topic] = append(http, topic, 7, tag=f"turn{turn}", first=turn)[-1]
                if turn % 5 == 4:
                    http.post(f"/v0/topics/{topic}/delete", json={"match": ["tag", "Eq", f"turn{turn - 3}"]})
                    self.deletes += 1
                turn += 1

    def wait_for(self, records: int) -> None:
        """Wait until each topic has so many."""
        deadline_s = time.monotonic() + 60
        while min(self.acked.get(topic, 0) for topic in self._names) < records:
            assert time.monotonic() < deadline_s, self.acked
            self._stop.wait(0.01)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def backed_up(tmp_path: Path, turn: int, load: Load) -> dict[str, Any]:
    """Make a backup of the running server and restore it. Return the directory and the records acknowledged before."""
    before = dict(load.acked)
    done = topics("backup", tmp_path / "data", tmp_path / "backup", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert topics("verify", tmp_path / "backup").returncode == 0
    restored = tmp_path / f"restored{turn}"
    assert topics("restore", tmp_path / "backup", restored).returncode == 0
    return json.loads(done.stdout) | {"before": before, "restored": restored}


@pytest.mark.torture
def test_backup_under_load_has_all_acknowledged_records(tmp_path: Path):
    with serving(tmp_path / "server", tmp_path / "data", segment_max_events=300) as server:
        with client(server) as http:
            http.put("/v0/topics/a", json={"durability": "fsync"})
            http.put("/v0/topics/b", json={"durability": "disk"})
        load = Load(server, "ab")
        results = []
        try:
            for turn in range(2):
                load.wait_for(700 * (turn + 1))  # at least two whole segments of each topic are new
                results.append(backed_up(tmp_path, turn, load))
        finally:
            load.end()
        truth = everything(server)
    assert results[1]["segments_reused"] > 0
    assert load.deletes > 0
    for turn, result in enumerate(results):
        served = started_on(tmp_path / f"check{turn}", result["restored"])
        for topic in "ab":
            found = {record["$seq"]: record for record in served[topic]}
            assert max(found) >= result["before"][topic] - 7 * 5
            for record in truth[topic]:  # records that were not deleted later must be there, unchanged
                if record["$seq"] <= result["before"][topic]:
                    assert found[record["$seq"]] == record


def test_backup_restarts_when_the_server_writes_a_snapshot(world: World, tmp_path: Path):
    """A hook plays the server: it installs the later state in the middle of the copy."""
    source = shutil.copytree(world.early, tmp_path / "data")
    overtaken = False

    def overtake(done: int, total: int) -> None:
        nonlocal overtaken
        if not overtaken:
            overtaken = True
            shutil.copytree(world.late, source, dirs_exist_ok=True)
            for old in set(contents(source)) - set(contents(world.late)):
                (source / old).unlink()

    done = duplicate(source, tmp_path / "backup", progress=overtake, pause=lambda: None)
    assert done.tries == 2
    assert check(tmp_path / "backup").clean
    assert started_on(tmp_path / "server", tmp_path / "backup") == world.late_records | {"brief": []}


class Killed(BaseException):
    pass


class MortalFs(Fs):
    """A file system that dies at the n-th changing call and fails every call after it."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls
        self.locks: list[Lock] = []

    def lock(self, path: str) -> Any:
        lock = super().lock(path)
        self.locks.append(lock)
        return lock

    def _live(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def open(self, path: str, *, write: bool = False, create: bool = False) -> Any:
        if not (write or create):
            return super().open(path)
        self._live()
        return MortalFile(self, super().open(path, write=write, create=create))

    def rename(self, src: str, dst: str) -> None:
        self._live()
        super().rename(src, dst)

    def unlink(self, path: str) -> None:
        self._live()
        super().unlink(path)

    def sync_dir(self, path: str) -> None:
        self._live()
        super().sync_dir(path)


class MortalFile:
    def __init__(self, fs: MortalFs, file: File) -> None:
        self._fs, self._file = fs, file

    def pwrite(self, data: bytes, at: int) -> None:
        self._fs._live()
        self._file.pwrite(data, at)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def killed_copy(dies_at: int, source: Path, target: Path) -> None:
    fs = MortalFs(dies_at)
    with pytest.raises(Killed):
        copy(fs, str(source), str(target))
    for lock in fs.locks:  # as the end of the process does
        lock.close()


@pytest.mark.parametrize("first", [True, False])
def test_backup_killed_at_any_call_leaves_usable_target(world: World, tmp_path: Path, first: bool):
    """A first backup leaves nothing that a server starts on; a later one leaves the old or a newer state."""
    base = tmp_path / "base"
    if not first:
        duplicate(world.early, base)
    everything_fs = MortalFs(10**9)
    trial = tmp_path / "trial"
    if not first:
        shutil.copytree(base, trial)
    copy(everything_fs, str(world.killed), str(trial))
    calls = 10**9 - everything_fs.left
    assert calls > 40
    least = {} if first else {topic.topic: topic.head_seq for topic in check(base).topics}
    for dies_at in range(0, calls, 3):
        shutil.rmtree(trial)
        if not first:
            shutil.copytree(base, trial)
        killed_copy(dies_at, world.killed, trial)
        if (trial / "FORMAT").exists():
            report = check(trial)
            assert report.damage == [], f"killed at call {dies_at} of {calls}"
            heads = {topic.topic: topic.head_seq for topic in report.topics}
            assert all(heads[name] >= head for name, head in least.items())
        else:
            assert first


def test_killed_backup_can_be_finished(world: World, tmp_path: Path):
    target = tmp_path / "backup"
    killed_copy(60, world.killed, target)
    refused = topics("serve", "--data-dir", target, "--port", "0")
    assert refused.returncode == 1
    assert "cannot_start" in refused.stderr
    assert "unfinished" in refused.stderr or "FORMAT" in refused.stderr
    assert topics("backup", world.killed, target).returncode == 0
    assert started_on(tmp_path / "server", target) == world.killed_records | {"brief": []}


def test_killed_backup_process_leaves_old_backup_usable(world: World, tmp_path: Path):
    duplicate(world.early, tmp_path / "base")
    command = [sys.executable, "-m", "topics", "backup", str(world.killed)]
    for delay_s in (0.15, 0.25, 0.3, 0.35, 0.4):
        target = shutil.copytree(tmp_path / "base", tmp_path / f"target{delay_s}")
        process = subprocess.Popen([*command, str(target)], stdout=subprocess.DEVNULL)
        time.sleep(delay_s)
        process.kill()
        process.wait()
        assert check(target).damage == []


def test_damage_in_the_source_is_copied_and_reported(late: Path, tmp_path: Path):
    path = segment_files(late)[0]
    flip(path, 100)
    done = topics("backup", late, tmp_path / "backup")
    assert done.returncode == 1
    assert f"damaged: {path} at byte 8" in done.stdout
    assert [finding.offset for finding in check(tmp_path / "backup").damage] == [8]
    done = topics("restore", tmp_path / "backup", tmp_path / "restored")
    assert (done.returncode, "damaged: " in done.stdout) == (1, True), done


def test_damaged_segment_never_replaces_a_good_copy(late: Path, tmp_path: Path):
    duplicate(late, tmp_path / "backup")
    flip(segment_files(late)[0], 100)
    duplicate(late, tmp_path / "backup")
    assert check(tmp_path / "backup").clean


def test_removed_damaged_file_is_copied_again(late: Path, tmp_path: Path):
    target = tmp_path / "backup"
    duplicate(late, target)
    segment_files(target)[0].unlink()
    assert duplicate(late, target).segments_copied == 1
    assert check(target).clean


def test_target_with_another_history_is_refused_unchanged(world: World, tmp_path: Path):
    with serving(tmp_path / "server", tmp_path / "other") as server, client(server) as http:
        append(http, "elsewhere", 100)
    for source, target in ((tmp_path / "other", world.late), (world.early, world.late)):
        backup = shutil.copytree(target, tmp_path / "backup", dirs_exist_ok=True)
        done = topics("backup", source, backup)
        assert done.returncode == 2
        assert "is no earlier backup of" in done.stderr
        assert "next: choose another target" in done.stderr
        assert check(backup).clean
        assert records_in(check(backup)) == records_in(check(target))


def test_backup_that_a_server_has_changed_is_refused(world: World, tmp_path: Path):
    duplicate(world.early, tmp_path / "backup")
    with serving(tmp_path / "server", tmp_path / "backup") as server, client(server) as http:
        append(http, "log", 500)
    with pytest.raises(CopyError, match="is no earlier backup"):
        duplicate(world.late, tmp_path / "backup")


def test_overlapping_directories_are_refused(late: Path):
    for target in (late, late / "backup", late.parent):
        assert topics("backup", late, target).returncode == 2


def test_restore_refuses_existing_directory_and_force_moves_it(world: World, late: Path, tmp_path: Path):
    duplicate(world.early, tmp_path / "backup")
    done = topics("restore", tmp_path / "backup", late)
    assert (done.returncode, "is not empty\nnext: move it away" in done.stderr) == (2, True)
    done = topics("restore", tmp_path / "backup", late, "--force")
    assert done.returncode == 0, done.stderr
    [aside] = tmp_path.glob("data.before-restore-*")
    assert str(aside) in done.stdout
    assert records_in(check(aside))["log"] == len(world.late_records["log"])
    assert records_in(check(late))["log"] == len(world.early_records["log"])


def test_restore_to_a_link_keeps_the_link_and_replaces_its_target(world: World, late: Path, tmp_path: Path):
    link = tmp_path / "link"
    link.symlink_to(late)
    done = topics("restore", world.early, f"{link}/", "--force")
    assert done.returncode == 0, done.stderr
    assert link.readlink() == late
    assert records_in(check(late))["log"] == len(world.early_records["log"])
    [aside] = tmp_path.glob("data.before-restore-*")
    assert records_in(check(aside))["log"] == len(world.late_records["log"])


def test_backup_says_why_its_source_cannot_be_read(tmp_path: Path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    for name, reason in (("loop", "Too many levels"), ("file", "Not a directory"), ("none", "No such file")):
        done = topics("backup", tmp_path / name, tmp_path / "backup")
        assert (done.returncode, f"{name} cannot be read: {reason}" in done.stderr) == (2, True), done.stderr


def test_restore_does_not_move_an_open_directory(world: World, tmp_path: Path):
    with serving(tmp_path / "server", tmp_path / "data"):
        done = topics("restore", world.early, tmp_path / "data", "--force")
    assert (done.returncode, "held by pid" in done.stderr) == (2, True)


def test_cold_segments_become_ordinary_ones_in_a_backup(late: Path, tmp_path: Path):
    cold = tmp_path / "cold"
    [path] = late.glob("snapshots/*.snap")
    snapshot = snap.decode(path.read_bytes(), path=str(path))
    moved = 0
    for topic in snapshot.topics:
        for ref in topic.segments[:1]:
            name = f"{topic.topic_id}/{ref.first:020d}.seg"
            (cold / name).parent.mkdir(parents=True)
            shutil.move(late / "segments" / name, cold / name)
            ref.cold = True
            moved += 1
    path.write_bytes(snap.encode(snapshot))
    assert moved > 0
    done = topics("backup", late, tmp_path / "backup")
    assert (done.returncode, "next: name that folder with --cold-dir" in done.stderr) == (2, True)
    assert topics("backup", late, tmp_path / "backup", "--cold-dir", cold).returncode == 0
    assert check(tmp_path / "backup").clean
    assert check(late, cold_dir=str(cold)).clean
    unnamed = check(late)
    assert unnamed.clean
    assert len([note for note in unnamed.notes if "in the cold folder" in note]) == moved


def test_deletes_after_a_segment_copy_become_pending_marks(world: World, tmp_path: Path):
    """Deletes are in the snapshot before they are in the file, so a kill in between loses none."""
    target = tmp_path / "backup"
    duplicate(world.early, target)
    flags = {path.name: _flags(path) for path in segment_files(target)}
    duplicate(world.late, target)
    [path] = target.glob("snapshots/*.snap")
    pending = [ref.pending for topic in snap.decode(path.read_bytes(), path="").topics for ref in topic.segments]
    changed = [path for path in segment_files(target) if path.name in flags and _flags(path) != flags[path.name]]
    assert any(pending)
    assert changed


def _flags(path: Path) -> bytes:
    data = path.read_bytes()
    footer = codec.decode_footer(data[-codec.FOOTER_BYTES :], path=str(path), file_bytes=len(data))
    return data[footer.flags_at : footer.flags_at + footer.count]
