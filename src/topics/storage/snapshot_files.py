"""Find the snapshot that the state of a data directory begins with."""

from __future__ import annotations

from topics import logs
from topics.errors import Corrupt
from topics.storage import snapshot as snap
from topics.storage.datadir import DataDir
from topics.storage.fs import read_whole

log = logs.Log("recovery")


def newest(datadir: DataDir, damage: list[str]) -> snap.Snapshot:
    """Return the newest readable snapshot; an empty one with number 0 in a directory that never had one.

    Raise `Corrupt` if there was a snapshot and none is readable. Report damaged ones in `damage`.
    """
    numbers = datadir.snapshot_numbers()
    for number in reversed(numbers):
        path = datadir.snapshot_path(number)
        data = read_whole(datadir.fs, path)
        try:
            snapshot = snap.decode(data, path=path, number=number)
        except Corrupt as error:
            damage.append(str(error))
            log.error("snapshot_damaged", file=path, reason=error.what)
            continue
        if bad := snap.damaged_copies(data):
            damage.append(f"{path} at byte {bad[0]}: one copy of the snapshot is damaged, the other was used")
            log.warning("snapshot_copy_damaged", file=path, offset=bad[0])
        return snapshot
    log_numbers = datadir.wal_numbers()
    began_later = log_numbers[:1] > [1] or datadir.ledger_numbers()[:1] > [1]
    if not numbers and (began_later or (not log_numbers and (datadir.tails_numbers() or datadir.topic_ids()))):
        # Without a snapshot the directory would count as empty, and its files as leftovers.
        raise Corrupt(datadir.snapshots_dir, 0, "the snapshot is missing; restore the data directory from a backup")
    if numbers:
        raise Corrupt(
            datadir.snapshot_path(numbers[-1]), 0, "no snapshot can be read; restore the data directory from a backup"
        )
    return snap.empty()
